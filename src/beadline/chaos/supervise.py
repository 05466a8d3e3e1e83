"""The supervisor: starts the job, has it killed, starts it again, and counts what came out.

    python -m beadline.chaos.supervise --seed 7 --points decide.before,decide.after#2/group

One run is a chain of children on one checkpoint. A child dies by its own hand at a crash point, or
by a kill from outside at a random moment; the last one is left alone. Nothing is waited for between
two children: where only the Python driver was killed, its JVM is a real zombie beside the next one
for a moment. Everything that was started is ended, by its id, when the run is over.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from beadline.chaos import plan
from beadline.chaos.check import Report, check
from beadline.chaos.child import CHILD_TIMEOUT_S, Child, Line
from beadline.chaos.outside import strike
from beadline.chaos.plan import GROUP, MOMENT, Kill
from beadline.chaos.workload import Workload
from beadline.errors import BeadlineError

# So many epochs are left before each start: a child may have to finish one, sees its point come by
# a second time one later, and a killed worker's task is tried again in the presence of more.
BACKLOG = 4


class RunFailed(BeadlineError):
    """A child did what no kill explains, or rows were seen twice in mid-run."""


@dataclass(frozen=True)
class Outcome:
    """What became of one child; ``kills`` is how many signals really hit somebody."""

    kill: Kill | None
    returncode: int
    kills: int
    events: tuple[Line, ...]
    seconds: float

    @property
    def reached(self) -> bool:
        """Whether the kill happened."""
        return self.kills > 0


@dataclass
class Supervisor:
    """Runs children on one workload, one after the other."""

    workload: Workload
    on_event: Callable[[Line], None] = lambda line: None
    children: list[Child] = field(default_factory=list)
    marks: list[Path] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    # Not in the workload's folder: PySpark's sockets are made there, whose paths must be short.
    temporary: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="beadline-")))

    def __enter__(self) -> Supervisor:
        self.workload.make()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process that was started here, and tidy up after the killed ones."""
        for child in self.children:
            child.end()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def run(self, kill: Kill | None = None) -> Outcome:
        """Start a child, let it be killed as told, and see that it died of that.

        A child whose crash point does not come by works off its input, and ends as if left alone.
        """
        child = self._start(kill)
        kills = 0
        if kill is not None and kill.point == MOMENT:
            rng = random.Random(f"{self.workload.seed} {len(self.children)}")
            kills = strike(child, kill.scope, rng)
        returncode = child.wait(CHILD_TIMEOUT_S)
        kills = kills or int(self.marks[-1].exists())
        survives = kill is None or kill.survived
        if returncode == 0 and not survives:
            kills = 0  # it had just ended when the signal came
        dies = kills > 0 and not survives
        return self._ended(child, kill, returncode, kills, dies)

    def run_naive(self, crash: str = "") -> Outcome:
        """The same with plain ``foreachBatch``; ``crash`` is a step of ``beadline.chaos.naive``."""
        child = self._start(None, "--naive", crash)
        returncode = child.wait(CHILD_TIMEOUT_S)
        return self._ended(child, None, returncode, int(bool(crash)), bool(crash))

    def _start(self, kill: Kill | None, *arguments: str) -> Child:
        number = len(self.children)
        if number > 1:
            self.children[-2].end()  # what it left has been a zombie for a whole life
        scratch = self.workload.scratch
        mark = scratch / f"killed-{number:03d}"
        child = Child(
            "beadline.chaos.driver",
            [str(self.workload.folder), *arguments],
            scratch / f"child-{number:03d}.log",
            self.temporary,
            self.on_event,
            _armed(kill, mark),
        )
        self.children.append(child)
        self.marks.append(mark)
        return child

    def _ended(
        self, child: Child, kill: Kill | None, returncode: int, kills: int, dies: bool
    ) -> Outcome:
        outcome = Outcome(kill, returncode, kills, tuple(child.events), child.seconds)
        self.outcomes.append(outcome)
        if returncode != (-signal.SIGKILL if dies else 0):
            raise RunFailed(
                f"child {len(self.children)} (kill: {kill}, {kills} hit) ended with {returncode}, "
                f"not with {'SIGKILL' if dies else '0'}.\n{child.complaint()}"
            )
        return outcome


def _armed(kill: Kill | None, mark: Path) -> dict[str, str]:
    """What a child is told that is to die by its own hand."""
    if kill is None or kill.point == MOMENT:
        return {}
    return {
        "BEADLINE_CRASH": f"{kill.point}#{kill.occurrence}",
        "BEADLINE_CRASH_MARK": str(mark),
        "BEADLINE_CRASH_SCOPE": GROUP if kill.scope == GROUP else "process",
    }


@dataclass(frozen=True)
class Run:
    """A whole run: every child, and what came out in the end."""

    seed: int
    kills: tuple[Kill, ...]
    outcomes: tuple[Outcome, ...]
    report: Report

    @property
    def reached(self) -> set[str]:
        """The crash points at which a process really died."""
        return {o.kill.point for o in self.outcomes if o.kill is not None and o.reached}

    @property
    def missed(self) -> list[str]:
        """The kills that did not come about."""
        return [str(o.kill) for o in self.outcomes if o.kill is not None and not o.reached]

    @property
    def killed(self) -> int:
        """How many kills there were."""
        return sum(outcome.kills for outcome in self.outcomes)


def replay(seed: int, kills: Sequence[Kill]) -> str:
    """The command that makes the same run again."""
    return f"python -m beadline.chaos.supervise --seed {seed} --points {plan.text(kills)}"


def run_chain(
    workload: Workload,
    kills: Sequence[Kill],
    say: Callable[[str], None] = lambda line: None,
    judge: Callable[[Workload], Report] = check,
) -> Run:
    """Kill one child after the other, run a last one undisturbed, and compare."""
    with Supervisor(workload) as supervisor:
        for kill in kills:
            workload.feed(BACKLOG + kill.occurrence)
            outcome = supervisor.run(kill)
            say(f"{outcome.seconds:5.1f} s  {kill}: {outcome.kills} killed")
            twice = judge(workload).duplicated
            if twice:
                raise RunFailed(f"{twice} rows show twice after the kill at {kill}")
        workload.feed(1)
        last = supervisor.run()
        say(f"{last.seconds:5.1f} s  undisturbed")
        outcomes = tuple(supervisor.outcomes)
    return Run(workload.seed, tuple(kills), outcomes, judge(workload))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make one run and print its report; exit with 1 if rows were lost or doubled."""
    parser = argparse.ArgumentParser(prog="python -m beadline.chaos.supervise")
    parser.add_argument("--seed", type=int, default=0, help="of the input, the order, the moments")
    parser.add_argument(
        "--points", help="kills in order, with commas between; every crash point if left out"
    )
    parser.add_argument("--folder", type=Path, help="an empty folder, kept; temporary if left out")
    given = parser.parse_args(arguments)
    kills = plan.parse(given.points) if given.points else plan.every_point(given.seed)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="beadline-chaos-"))
    fine = False
    try:
        run = run_chain(Workload(folder.absolute(), given.seed), kills, print)
        fine = run.report.exactly_once and not (run.missed or run.report.leftovers)
        found = {"seed": run.seed, "kills": run.killed, "missed": run.missed}
        print(json.dumps({**found, **run.report.as_dict()}))
    except RunFailed as error:
        print(f"{error}\nThe folder is kept: {folder}", file=sys.stderr)
    if fine and given.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
