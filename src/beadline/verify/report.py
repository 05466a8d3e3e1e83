"""The result of a verification: as an object, as tables, and the command that repeats it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from beadline.points import EVERY_POINT
from beadline.verify import scratch
from beadline.verify.compare import Reference, Violation
from beadline.verify.faults import KINDS, Fault
from beadline.verify.task import InspectedSink, Inspection

if TYPE_CHECKING:
    from rich.console import RenderableType

FINE, BAD, UNCLEAR, MISSED = "exactly-once", "VIOLATED", "inconclusive", "not reached"
INCONCLUSIVE = 5  # the exit code of a verification that proves nothing, neither way


@dataclass
class FaultResult:
    """One fault: whether it was injected, and what was wrong because of it.

    ``unclear`` says why the outcome is not known: a start did not end, or a sink could not be read.
    ``before`` and ``after`` are the newest decided epochs around it, ``chain`` the earlier faults
    on the same checkpoint.
    """

    fault: Fault
    hits: int = 0
    note: str = ""
    found: list[Violation] = field(default_factory=list)
    before: int = -1
    after: int = -1
    seconds: float = 0.0
    chain: tuple[str, ...] = ()
    unclear: str = ""

    @property
    def tried(self) -> bool:
        """Whether a child was started for it."""
        return self.seconds > 0

    @property
    def reached(self) -> bool:
        """Whether it really happened."""
        return self.hits > 0

    @property
    def verdict(self) -> str:
        """One of four words."""
        if self.found or self.unclear:
            return BAD if self.found else UNCLEAR
        return FINE if self.reached else MISSED

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "fault": str(self.fault),
            "kind": self.fault.kind,
            "verdict": self.verdict,
            "hits": self.hits,
            "seconds": self.seconds,
            "note": self.note,
            "inconclusive": self.unclear,
            "after": list(self.chain),
            "violations": [each.as_dict() for each in self.found],
        }


@dataclass(frozen=True)
class Verification:
    """A whole verification."""

    job: str
    query: str
    seed: int
    epochs: int
    rows: Mapping[str, int]
    results: Sequence[FaultResult]
    points: Sequence[str]
    notes: Sequence[str]
    seconds: float
    chosen: bool = False  # by --only
    options: Sequence[str] = ()  # others that change what is run

    @property
    def fine(self) -> bool:
        """Whether nothing was wrong or unclear, and at least one fault was injected."""
        return self.verdict == FINE

    @property
    def verdict(self) -> str:
        """Of all faults: a violation is one whatever else is unclear."""
        if self.violations:
            return BAD
        return UNCLEAR if self.unclear or not self.faults else FINE

    @property
    def exit_code(self) -> int:
        """The command's exit code."""
        return {FINE: 0, BAD: 1}.get(self.verdict, INCONCLUSIVE)

    @property
    def kills(self) -> int:
        """How many times a process was killed with -9."""
        return sum(each.hits for each in self.results if each.fault.is_kill)

    @property
    def faults(self) -> int:
        """How many faults were injected."""
        return sum(1 for each in self.results if each.reached)

    @property
    def unclear(self) -> list[FaultResult]:
        """Those whose outcome is not known."""
        return [each for each in self.results if each.unclear]

    @property
    def violations(self) -> list[tuple[FaultResult, Violation]]:
        """Each with its fault."""
        return [(result, each) for result in self.results for each in result.found]

    def replay(self, result: FaultResult) -> str:
        """The command that repeats a fault; for a violation, with all faults that led to it."""
        with_all = result.found or result.unclear
        faults = [*result.chain, str(result.fault)] if with_all else [str(result.fault)]
        return self.command(",".join(faults))

    def command(self, only: str) -> str:
        """The command line for these faults, with every option that changes what is run."""
        words = [self.job, "--seed", str(self.seed), *self.options, "--only", only]
        return f"beadline verify {shlex.join(words)}"

    def unreached(self) -> dict[str, str]:
        """Every crash point at which nothing was killed, with the reason."""
        killed = {
            result.fault.kill.point
            for result in self.results
            if result.fault.is_kill and result.fault.kill is not None and result.reached
        }
        tried = {
            result.fault.kill.point: result.note
            or "a child was started for it, and did not reach it"
            for result in self.results
            if result.fault.is_kill and result.fault.kill is not None and not result.reached
        }
        why = "it was not requested (--only)" if self.chosen else "--kills left no room for it"
        return {
            point: tried.get(point, why if point in self.points else _NOT_HERE.get(point, _ABSENT))
            for point in EVERY_POINT
            if point not in killed
        }

    def as_dict(self) -> dict[str, Any]:
        """One object for programs."""
        return {
            "job": self.job,
            "query": self.query,
            "seed": self.seed,
            "verdict": self.verdict,
            "kills": self.kills,
            "faults": [
                {**result.as_dict(), "replay": self.replay(result)} for result in self.results
            ],
            "violations": len(self.violations),
            "inconclusive": len(self.unclear),
            "epochs": self.epochs,
            "rows": dict(self.rows),
            "points_reached": sorted(set(EVERY_POINT) - set(self.unreached())),
            "points_not_reached": self.unreached(),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


_ABSENT = "not part of this job: no undisturbed run reaches it"
_NOT_HERE = {
    "kafka.proof": "not part of this job: only after a transaction of Kafka was lost",
    "kafka.end_writer": "only after an answer of Kafka was lost on the network",
}


def by_kind(report: Verification) -> Iterator[tuple[str, int, int, str]]:
    """For each kind of fault: its words, how many were planned and injected, the verdict."""
    for kind, words in KINDS.items():
        found = [result for result in report.results if result.fault.kind == kind]
        if found:
            hit = sum(1 for result in found if result.reached)
            verdicts = {result.verdict for result in found}
            worst = next(each for each in (BAD, UNCLEAR, FINE, MISSED) if each in verdicts)
            yield words, len(found), hit, worst


def reasons(report: Verification) -> dict[str, list[str]]:
    """The crash points at which nothing was killed, by the reason."""
    found: dict[str, list[str]] = {}
    for point, why in report.unreached().items():
        found.setdefault(why, []).append(point)
    return found


def views(report: Verification) -> list[RenderableType]:
    """Tables for people."""
    from rich.markup import escape
    from rich.table import Table

    faults = Table(title=f"Faults of seed {report.seed}", title_justify="left")
    for column in ("fault (--only)", "hits", "decided", "s", "verdict"):
        faults.add_column(column, justify="left" if column in _WORDS else "right")
    for result in report.results:
        verdict = _coloured(result.verdict)
        kinds = sorted({str(each.kind) for each in result.found})
        note = ", ".join(kinds) or ("" if result.reached or result.unclear else result.note)
        faults.add_row(
            str(result.fault),
            str(result.hits),
            str(result.after + 1) if result.tried else "",
            f"{result.seconds:.0f}" if result.tried else "",
            f"{verdict}: {escape(note)}" if note else verdict,
        )
    kinds_ = Table(title="Verdict", title_justify="left")
    for column in ("kind of fault", "planned", "injected", "verdict"):
        kinds_.add_column(column, justify="left" if column in _WORDS else "right")
    for words, count, hit, verdict in by_kind(report):
        kinds_.add_row(words, str(count), str(hit), _coloured(verdict))
    lines: list[RenderableType] = [faults, kinds_]
    lines += [f"[dim]{escape(note)}[/]" for note in report.notes]
    for why, points in reasons(report).items():
        lines.append(f"[dim]No kill at {escape(', '.join(points))}: {escape(why)}[/]")
    for result, violation in report.violations:
        lines.append(f"[bold red]✗[/] {escape(str(result.fault))}: {escape(str(violation))}")
        lines.append(f"  replay: {escape(report.replay(result))}")
    for result in report.unclear:
        lines.append(f"[bold yellow]?[/] {escape(result.unclear)}")
        lines.append(f"  replay: {escape(report.replay(result))}")
    lines.append(f"[dim]Any fault again: {escape(report.command('FAULT'))}[/]")
    lines.append(closing(report))
    return lines


def closing(report: Verification) -> str:
    """The last sentence, coloured."""
    return f"[{_COLOURS[report.verdict]}]{sentence(report)}[/]"


def sentence(report: Verification) -> str:
    """What it all comes to."""
    kills = f"{_times(report.faults, 'fault')}, {_times(report.kills, 'kill')} among them"
    if report.violations:
        return (
            f"Exactly-once is violated: {_times(len(report.violations), 'violation')} in {kills}."
        )
    if not report.faults:
        return "Inconclusive: no fault was injected, so nothing is proven."
    if report.unclear:
        return (
            f"Inconclusive: {len(report.unclear)} of {len(report.results)} faults did not come to "
            "an end that could be compared. No violation was found; run those again."
        )
    rows = ", ".join(f"{name} {count:,}" for name, count in report.rows.items())
    return (
        f"{_times(report.kills, 'kill')} with -9, {_times(report.faults, 'fault')} in all, and the "
        f"sinks show what an undisturbed run shows ({rows})."
    )


def _times(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


_WORDS = ("fault (--only)", "kind of fault", "verdict")
_COLOURS = {FINE: "green", BAD: "bold red", UNCLEAR: "bold yellow", MISSED: "yellow"}


def _coloured(verdict: str) -> str:
    return f"[{_COLOURS[verdict]}]{verdict}[/]"


def notes_of(
    found: Inspection, references: Mapping[str, Reference], *, chosen: bool = False
) -> list[str]:
    """Everything that a reader of the verdict should know; ``chosen``, if faults were requested."""
    notes = [*(each.said for each in found.ranges), *_of_sinks(found, references)]
    if found.stateful and not chosen and any(map(can_expire, found.sinks)):
        notes.append("the fault 'expire' is left out: the job keeps state")
    return notes


def can_expire(seen: InspectedSink) -> bool:
    """Whether the server discards prepared parts after a while."""
    return scratch.store_of(seen.name, seen.sink).with_timeout is not None


def _of_sinks(found: Inspection, references: Mapping[str, Reference]) -> Iterator[str]:
    for seen in found.sinks:
        store = scratch.store_of(seen.name, seen.sink)
        reference = references[seen.name]
        if store.note(seen.sink):
            yield f"{seen.name}: {store.note(seen.sink)}"
        if store.address(seen.sink) is None:
            yield f"no network cuts for {seen.name}: {store.no_cuts}"
        if not reference.end.rows:
            yield f"{seen.name} shows no rows in the undisturbed run: nothing is proven about it"
        if not reference.watched:
            yield f"{seen.name} is compared at the end only: {_why_not_watched(reference, store)}"
    for name in found.left_out:
        yield f"{name} is not compared: it cannot be read back"


def _why_not_watched(reference: Reference, store: scratch.ScratchStore) -> str:
    if not reference.by_epoch:
        return "its epochs are not the same in every run"
    if reference.atomic:
        return "its rows change, and may be written again (at-least-once)"
    return store.no_watch
