"""A whole verification: two undisturbed runs, then faults, round after round, within its time."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from beadline.errors import UsageError
from beadline.jobs.loading import open_job
from beadline.points import EVERY_POINT
from beadline.sink import Guarantee
from beadline.verify import faults, removal, scratch
from beadline.verify.chain import Chain
from beadline.verify.child import Child
from beadline.verify.compare import Reference, differences, in_common
from beadline.verify.cuts import Cut, epochs_by_cut
from beadline.verify.faults import Fault
from beadline.verify.notes import can_expire, check_any_rows, notes_of
from beadline.verify.plan import NEEDS_DECIDED
from beadline.verify.report import FaultResult, Report
from beadline.verify.rounds import (
    TIMEOUT_MIN_S,
    Redact,
    Round,
    VerifyFailed,
    inspect,
    make_round,
    remove_ranges,
)
from beadline.verify.task import Found, Task
from beadline.verify.wish import Wish

# Points that only a fault leads to; the undisturbed run does not come by them.
AFTER_A_DECISION = tuple(sorted(NEEDS_DECIDED))
_FENCE = "kafka.fence"
# A start may take so many times as long as the undisturbed run: a machine may be busy, and a start
# after a fault has more to do.
_TIMEOUT_FACTOR = 10.0
Say = Callable[[str], None]


@dataclass
class Verifier:
    """Runs everything, and tidies up."""

    wish: Wish
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
        self.kept: list[Round] = []
        self.left: list[str] = []  # what could not be removed, in words
        self.results: list[FaultResult] = []
        self.slowest_s = 0.0
        self.timeout_s = self.wish.timeout_s or max(TIMEOUT_MIN_S, self.wish.minutes * 60)
        self.undisturbed: dict[Cut, int] = {}  # epochs of the first run, by where they end

    def run(self) -> Report:
        """Do it; whatever happens, nothing is left running."""
        try:
            report = self._run()
        except BaseException:
            self._tidy_up()
            for text in self.left:  # there is no report that would tell it
                self.say(escape(text))
            raise
        self._tidy_up()
        return replace(report, notes=(*report.notes, *self.left))

    def _tidy_up(self) -> None:
        """Remove what was made, and remember what stays."""
        for made in self.kept:
            made.end()
        if not self.wish.keep:
            for made in self.kept:
                self.left += made.remove()
            self.left += remove_ranges(self.folder / "job")
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            removal.forget_secrets(self.folder, self.redact)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _run(self) -> Report:
        wish = self.wish
        job = os.path.abspath(wish.job)
        task = Task(job, dict(wish.conf), self.tag, wish.limits, output_mode=wish.output_mode)
        self.say("looking at the job, and copying what its sources hold …")
        self.redact = open_job(wish.job).redact
        folder = self.folder / "job"
        found, task = inspect(task, folder, self.temporary, self.timeout_s, self.redact)
        if wish.in_place:
            _check_empty(found)
        references, seen = self._references(task, found)
        epochs = 1 + max(each.last for each in references.values())
        network = any(
            scratch.store_of(each.name, each.sink).address(each.sink) for each in found.sinks
        )
        expires = not found.stateful and any(map(can_expire, found.sinks))
        points = _points(seen, found, expires)
        plan = list(wish.only) or faults.planned(
            wish.seed, wish.kills, points, network=network, expires=expires
        )
        self.say(f"{epochs} epochs, {len(plan)} faults; seed {wish.seed}")
        self._all_rounds(plan, task, found, references, epochs, network)
        return self._report(found, references, points, epochs)

    def _references(self, task: Task, found: Found) -> tuple[dict[str, Reference], set[str]]:
        """Run twice undisturbed; what the two do not agree on cannot be compared."""
        seen = self.folder / "seen"
        seen.mkdir()
        self.progress(0, 2, "two undisturbed runs")
        made = [self._round(task, found) for _ in range(2)]
        environment = {"BEADLINE_POINTS_SEEN": str(seen)}
        for each in made:
            each.start(environment=environment, record=True)
        runs, cuts = [], []
        for number, each in enumerate(made, 1):
            (child,) = each.children.started
            if self._undisturbed_code(child) != 0:
                raise VerifyFailed(
                    f"the job does not run to its end undisturbed: {child.complaint()}"
                )
            self.progress(number, 2, "two undisturbed runs")
            self.slowest_s = max(self.slowest_s, child.seconds)
            recorded = each.recorded()
            cuts.append(recorded.cuts)
            made_of = partial(_reference, states=recorded.states, stateful=found.stateful)
            runs.append({sink.name: made_of(sink) for sink in found.sinks})
            each.end()
        differing = [text for name in runs[0] for text in differences(runs[0][name], runs[1][name])]
        if differing:
            raise UsageError(
                "two undisturbed runs of the job show different rows, so a comparison would mean "
                "nothing: something in it depends on the clock, on chance or on the order of rows "
                f"(beadline analyze may say what). {'; '.join(differing)}"
            )
        agreed = {name: in_common(runs[0][name], runs[1][name]) for name in runs[0]}
        check_any_rows(agreed)
        self.undisturbed = epochs_by_cut(cuts[0])
        if self.wish.timeout_s is None:
            self.timeout_s = max(TIMEOUT_MIN_S, _TIMEOUT_FACTOR * self.slowest_s)
        if found.mode is not Guarantee.EXACTLY_ONCE or cuts[0] != cuts[1]:
            agreed = {name: replace(each, by_epoch=False) for name, each in agreed.items()}
        return agreed, set(os.listdir(seen))

    def _undisturbed_code(self, child: Child) -> int:
        try:
            return child.wait(self.timeout_s)
        except TimeoutError:
            raise VerifyFailed(
                f"the job did not come to its end undisturbed in {self.timeout_s:.0f} s, so "
                "nothing is known of it. Give it more with --timeout, or take a smaller range with "
                f"--files and --records. Its last words: {child.complaint() or 'none'}"
            ) from None

    def _round(
        self, task: Task, found: Found, *, proxied: bool = False, real: bool = False
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
            in_place=real,
            proxied=proxied,
            timeout_s=self.timeout_s,
            redact=self.redact,
        )
        self.kept.append(made)
        return made

    def _all_rounds(
        self,
        plan: list[Fault],
        task: Task,
        found: Found,
        references: Mapping[str, Reference],
        epochs: int,
        network: bool,
    ) -> None:
        wish = self.wish
        left = list(plan)
        total = len(left)
        while left:
            if self._out_of_time() or (self.wish.fail_fast and self._bad()):
                why = "a violation was found before" if self._bad() and self.wish.fail_fast else ""
                why = why or f"out of time: --minutes {self.wish.minutes:g}"
                self.results += [FaultResult(fault, note=why) for fault in left]
                return
            made = self._round(task, found, proxied=network, real=self.wish.in_place)
            chain = Chain(
                made,
                references,
                self.undisturbed,
                epochs,
                wish.seed,
                partial(self._step, len(self.results), total),
                self._out_of_time,
                wish.fail_fast,
            )
            self.results += chain.run(left)
            known = [each.seconds for each in chain.done if not each.unclear]
            self.slowest_s = max([self.slowest_s, *known])
            made.end()
            if not self.wish.keep:
                self.left += made.remove()
                self.kept.remove(made)
            if self.wish.in_place:
                why = "in place there is one round only: the range is used up"
                self.results += [FaultResult(fault, note=why) for fault in left]
                return

    def _step(self, before: int, total: int, done: int, what: str) -> None:
        self.progress(before + done, max(total, before + done), what)

    def _out_of_time(self, reserve: float = 1.0) -> bool:
        """A fault and the start that drains the range must both fit."""
        used_s = time.monotonic() - self.began_s
        return used_s + reserve * self.slowest_s > self.wish.minutes * 60

    def _bad(self) -> bool:
        return any(result.found for result in self.results)

    def _report(
        self, found: Found, references: Mapping[str, Reference], points: list[str], epochs: int
    ) -> Report:
        notes = notes_of(found, references, chosen=bool(self.wish.only))
        if self.wish.keep:
            notes.append(f"everything is kept in {self.folder}, and scratch targets where they are")
        return Report(
            job=self.wish.job,
            query=found.query,
            seed=self.wish.seed,
            epochs=epochs,
            rows={name: each.end.rows.total() for name, each in references.items()},
            results=tuple(self.results),
            points=tuple(points),
            notes=tuple(notes),
            seconds=round(time.monotonic() - self.began_s, 1),
            chosen=bool(self.wish.only),
            options=self.wish.options,
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


def _points(seen: set[str], found: Found, expires: bool) -> list[str]:
    """The crash points of this job: those of the undisturbed run, and those behind a fault."""
    also = set(AFTER_A_DECISION) if found.mode is Guarantee.EXACTLY_ONCE else set()
    if any(name.startswith("kafka.") for name in seen):
        also.update((_FENCE, faults.PROOF) if expires else (_FENCE,))
    return [name for name in EVERY_POINT if name in seen or name in also]


def _check_empty(found: Found) -> None:
    """What is there already cannot be told from what the job wrote."""
    for seen in found.sinks:
        rows = scratch.shown(seen.name, seen.sink).rows.total()
        if rows:
            raise UsageError(
                f"--in-place: the target of sink {seen.name!r} shows {rows:,} rows already. Give "
                "an empty one, or leave --in-place out. Nothing was written to it."
            )
