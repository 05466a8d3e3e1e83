"""A whole verification: two undisturbed runs, then faults, round after round, within its time."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from beadline.errors import UsageError
from beadline.jobs.loading import open_job
from beadline.points import EVERY_POINT
from beadline.shared.secrets import HIDDEN, SECRET_NAME
from beadline.sink import Guarantee
from beadline.verify import faults, scratch
from beadline.verify.chain import Chain
from beadline.verify.child import Child
from beadline.verify.compare import EpochEnd, Reference, differences, epochs_by_end, in_common
from beadline.verify.faults import Fault
from beadline.verify.plan import NEEDS_DECIDED
from beadline.verify.report import FaultResult, Verification, can_expire, notes_of
from beadline.verify.rounds import (
    TIMEOUT_MIN_S,
    Redact,
    Round,
    VerifyFailed,
    inspect,
    make_round,
    remove_ranges,
)
from beadline.verify.source_range import RangeLimits
from beadline.verify.task import SECRET, Inspection, Task

# Points that only a fault leads to; the undisturbed run does not reach them.
AFTER_A_DECISION = tuple(sorted(NEEDS_DECIDED))
_FENCE = "kafka.fence"
# A start may take this many times as long as the undisturbed run: the machine may be busy, and a
# start after a fault has more to do.
_TIMEOUT_FACTOR = 10.0
Say = Callable[[str], None]
_LOGIN = re.compile(r"//[^/@\s]+@")  # an address with a user name in it, and usually a password


def limit_of(slowest_s: float, given: float | None) -> float:
    """Return how long a start may take: as requested, or based on the slowest undisturbed one."""
    return max(TIMEOUT_MIN_S, _TIMEOUT_FACTOR * slowest_s) if given is None else given


@dataclass(frozen=True)
class Options:
    """What the user of ``beadline verify`` asked for, and how to ask for the same again."""

    job: str
    seed: int
    kills: int | None = None
    minutes: float = 15.0
    limits: RangeLimits = field(default_factory=RangeLimits)
    only: tuple[Fault, ...] = ()
    conf: Mapping[str, Any] = field(default_factory=dict)
    output_mode: str | None = None
    in_place: bool = False
    keep: bool = False
    fail_fast: bool = False
    timeout_s: float | None = None  # of each start; grows with the undisturbed run, unless given

    @property
    def words(self) -> tuple[str, ...]:
        """The command's options that change what is run, except seed and faults."""
        return tuple(self._words())

    def _words(self) -> Iterator[str]:
        usual = RangeLimits()
        for name, value in vars(self.limits).items():
            if value != getattr(usual, name):
                yield from (f"--{name}", str(value))
        if self.timeout_s is not None:
            yield from ("--timeout", f"{self.timeout_s:g}")
        if self.output_mode is not None:
            yield from ("--output-mode", self.output_mode)
        if self.in_place:
            yield "--in-place"
        for key, value in self.conf.items():
            # A report is passed on: its secrets must be filled in to run it again. A value may
            # hold settings with names of their own, as options of Java do.
            texts = (key, str(value))
            secret = any(SECRET_NAME.search(text) or _LOGIN.search(text) for text in texts)
            yield from ("--conf", f"{key}={HIDDEN if secret else value}")


@dataclass
class Verifier:
    """Runs everything, and cleans up."""

    asked: Options
    say: Say = lambda text: None
    progress: Callable[[int, int, str], None] = lambda done, total, what: None

    def __post_init__(self) -> None:
        """Two folders: PySpark's sockets are made in one, whose path must be short."""
        self.folder = Path(tempfile.mkdtemp(prefix="beadline-verify-"))
        self.temporary = Path(tempfile.mkdtemp(prefix="beadline-"))
        self.began_s = time.monotonic()
        self.tag = f"v{secrets.token_hex(3)}"
        self.rounds = 0
        self.redact: Redact = str
        self._ahead = False
        self.kept: list[Round] = []
        self.left: list[str] = []  # what could not be removed, in words
        self.results: list[FaultResult] = []
        self.slowest_s = 0.0
        self.timeout_s = self.asked.timeout_s or max(TIMEOUT_MIN_S, self.asked.minutes * 60)
        self.undisturbed: dict[EpochEnd, int] = {}  # epochs of the first run, by where they end

    def run(self) -> Verification:
        """Run it; whatever happens, nothing is left running."""
        try:
            report = self._run()
        except BaseException:
            self._tidy_up()
            for text in self.left:  # there is no report that would have it
                self.say(escape(text))
            raise
        self._tidy_up()
        return replace(report, notes=(*report.notes, *self.left))

    def _tidy_up(self) -> None:
        """Remove what was made, and remember what stays."""
        for made in self.kept:
            made.end()
        if not self.asked.keep:
            for made in self.kept:
                self.left += made.remove()
            self.left += remove_ranges(self.folder / "job")
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            _forget_secrets(self.folder, self.redact)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _run(self) -> Verification:
        asked = self.asked
        job = os.path.abspath(asked.job)
        task = Task(job, dict(asked.conf), self.tag, asked.limits, output_mode=asked.output_mode)
        self.say("looking at the job, and copying what its sources hold …")
        file = open_job(asked.job)
        self.redact = file.redact
        # Not on a cluster: a waiting driver would hold resources there.
        master = {**file.conf, **asked.conf}.get("spark.master", "local")
        self._ahead = str(master).startswith("local")
        folder = self.folder / "job"
        found, task = inspect(task, folder, self.temporary, self.timeout_s, self.redact)
        if asked.in_place:
            _check_empty(found)
        references, seen = self._references(task, found)
        epochs = 1 + max(each.last for each in references.values())
        network = any(
            scratch.store_of(each.name, each.sink).address(each.sink) for each in found.sinks
        )
        expires = not found.stateful and any(map(can_expire, found.sinks))
        points = _points(seen, found, expires)
        plan = list(asked.only) or faults.planned(
            asked.seed, asked.kills, points, network=network, expires=expires
        )
        self.say(f"{epochs} epochs, {len(plan)} faults; seed {asked.seed}")
        self._all_rounds(plan, task, found, references, epochs, network)
        return self._report(found, references, points, epochs)

    def _references(self, task: Task, found: Inspection) -> tuple[dict[str, Reference], set[str]]:
        """Run twice undisturbed; what the two do not agree on cannot be compared."""
        seen = self.folder / "seen"
        seen.mkdir()
        self.progress(0, 2, "two undisturbed runs")
        made = [self._round(task, found) for _ in range(2)]
        environment = {"BEADLINE_POINTS_SEEN": str(seen)}
        for each in made:
            each.start(environment=environment, record=True)
        runs, ends = [], []
        for number, each in enumerate(made, 1):
            (child,) = each.children.started
            if self._undisturbed_code(child) != 0:
                raise VerifyFailed(
                    f"the job does not run to its end undisturbed: {child.complaint()}"
                )
            self.progress(number, 2, "two undisturbed runs")
            self.slowest_s = max(self.slowest_s, child.seconds)
            recorded = each.recorded()
            ends.append(recorded.ends)
            made_of = partial(_reference, states=recorded.states, stateful=found.stateful)
            runs.append({sink.name: made_of(sink) for sink in found.sinks})
            each.end()
        differing = [text for name in runs[0] for text in differences(runs[0][name], runs[1][name])]
        if differing:
            raise UsageError(
                "two undisturbed runs of the job show different rows, so a comparison would mean "
                "nothing: something in it depends on the clock, on random values or on the order "
                f"of rows (beadline analyze may say what). {'; '.join(differing)}"
            )
        agreed = {name: in_common(runs[0][name], runs[1][name]) for name in runs[0]}
        check_any_rows(agreed)
        self.undisturbed = epochs_by_end(ends[0])
        self.timeout_s = limit_of(self.slowest_s, self.asked.timeout_s)
        if found.mode is not Guarantee.EXACTLY_ONCE or ends[0] != ends[1]:
            agreed = {name: replace(each, by_epoch=False) for name, each in agreed.items()}
        return agreed, set(os.listdir(seen))

    def _undisturbed_code(self, child: Child) -> int:
        try:
            return child.wait(self.timeout_s)
        except TimeoutError:
            raise VerifyFailed(
                f"the job did not finish undisturbed in {self.timeout_s:.0f} s, so nothing is "
                "known about it. Raise --timeout, or take a smaller range with --files and "
                f"--records. Its last output: {child.complaint() or 'none'}"
            ) from None

    def _round(
        self, task: Task, found: Inspection, *, for_faults: bool = False, proxied: bool = False
    ) -> Round:
        """New targets under a tag of their own."""
        self.rounds += 1
        tag = f"{self.tag}{self.rounds:02d}"
        folder = self.folder / f"round-{self.rounds:02d}"
        made = make_round(
            replace(task, tag=tag),
            found,
            folder,
            self.temporary,
            in_place=for_faults and self.asked.in_place,
            proxied=proxied,
            timeout_s=self.timeout_s,
            redact=self.redact,
            ahead=for_faults and self._ahead,
        )
        self.kept.append(made)
        return made

    def _all_rounds(
        self,
        plan: list[Fault],
        task: Task,
        found: Inspection,
        references: Mapping[str, Reference],
        epochs: int,
        network: bool,
    ) -> None:
        asked = self.asked
        left = list(plan)
        total = len(left)
        while left:
            if self._out_of_time() or (self.asked.fail_fast and self._bad()):
                why = "a violation was found before" if self._bad() and self.asked.fail_fast else ""
                why = why or f"out of time: --minutes {self.asked.minutes:g}"
                self.results += [FaultResult(fault, note=why) for fault in left]
                return
            made = self._round(task, found, for_faults=True, proxied=network)
            chain = Chain(
                made,
                references,
                self.undisturbed,
                epochs,
                asked.seed,
                partial(self._step, len(self.results), total),
                self._out_of_time,
                asked.fail_fast,
            )
            self.results += chain.run(left)
            known = [each.seconds for each in chain.done if not each.unclear]
            self.slowest_s = max([self.slowest_s, *known])
            made.end()
            if not self.asked.keep:
                self.left += made.remove()
                self.kept.remove(made)
            if self.asked.in_place:
                why = "with --in-place there is only one round: the range is used up"
                self.results += [FaultResult(fault, note=why) for fault in left]
                return

    def _step(self, before: int, total: int, done: int, what: str) -> None:
        self.progress(before + done, max(total, before + done), what)

    def _out_of_time(self, reserve: float = 1.0) -> bool:
        """A fault and the start that drains the range must both fit."""
        used_s = time.monotonic() - self.began_s
        return used_s + reserve * self.slowest_s > self.asked.minutes * 60

    def _bad(self) -> bool:
        return any(result.found for result in self.results)

    def _report(
        self, found: Inspection, references: Mapping[str, Reference], points: list[str], epochs: int
    ) -> Verification:
        notes = notes_of(found, references, chosen=bool(self.asked.only))
        if self.asked.keep:
            notes.append(f"everything is kept in {self.folder}, and scratch targets where they are")
        return Verification(
            job=self.asked.job,
            query=found.query,
            seed=self.asked.seed,
            epochs=epochs,
            rows={name: each.end.rows.total() for name, each in references.items()},
            results=tuple(self.results),
            points=tuple(points),
            notes=tuple(notes),
            seconds=round(time.monotonic() - self.began_s, 1),
            chosen=bool(self.asked.only),
            options=self.asked.words,
        )


def _reference(seen: Any, states: Mapping[int, Mapping[str, Any]], stateful: bool) -> Reference:
    store = scratch.store_of(seen.name, seen.sink)
    return Reference(
        seen.name,
        {epoch: shown[seen.name] for epoch, shown in states.items()},
        store.grows(seen.sink),
        store.atomic(seen.sink),
        seen.exactly,
        by_state=stateful,
    )


def _points(seen: set[str], found: Inspection, expires: bool) -> list[str]:
    """The crash points of this job: those of the undisturbed run, and those after a fault."""
    also = set(AFTER_A_DECISION) if found.mode is Guarantee.EXACTLY_ONCE else set()
    if any(name.startswith("kafka.") for name in seen):
        also.update((_FENCE, faults.PROOF) if expires else (_FENCE,))
    return [name for name in EVERY_POINT if name in seen or name in also]


def _check_empty(found: Inspection) -> None:
    """Rows that are already there cannot be distinguished from those that the job wrote."""
    for seen in found.sinks:
        rows = scratch.shown(seen.name, seen.sink).rows.total()
        if rows:
            raise UsageError(
                f"--in-place: the target of sink {seen.name!r} shows {rows:,} rows already. Give "
                "an empty one, or leave --in-place out. Nothing was written to it."
            )


def _forget_secrets(folder: Path, redact: Callable[[str], str]) -> None:
    """Redact what ``--keep`` leaves: messages completely, logs by the job's own secrets."""
    for name in SECRET:
        for path in folder.rglob(name):
            path.unlink()
    for log in folder.rglob("*.log"):
        text = log.read_text("utf-8", "replace")
        said = redact(text)
        if said != text:
            log.write_text(said, "utf-8")


def check_any_rows(references: Mapping[str, Reference]) -> None:
    """Refuse to compare nothing with nothing: it would pass whatever the faults did."""
    if not any(each.end.rows for each in references.values()):
        raise UsageError(
            "the undisturbed run shows no rows in any sink, so there is nothing to compare. A "
            "filter may let none through, or a watermark may close no window in the range: take "
            "more with --records or --files, or let totals show at once with --output-mode update."
        )
