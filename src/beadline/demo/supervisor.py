"""The supervisor: starts the job, has it killed, and starts it again.

One run is a chain of children on one checkpoint. A child dies by its own hand at a crash point, or
by a kill from outside at a random moment; the last one is left alone. Nothing is waited for between
two children: where only the Python driver was killed, its JVM is a real zombie beside the next one
for a moment. Everything that was started is ended, by its id, when the run is over.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from beadline.demo.workload import Workload
from beadline.errors import BeadlineError
from beadline.verify.child import Child, Children, Line, kill_at_random
from beadline.verify.plan import MOMENT, Kill

JOB = "beadline.demo.job"


class RunFailed(BeadlineError):
    """A child did what no kill explains, or rows were seen twice during a run."""


@dataclass(frozen=True)
class RunResult:
    """What became of one child; ``kills`` is how many signals really hit a process."""

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
    module: str = JOB
    expected: int = 1  # starts in all; where there are more, each is made ready ahead
    outcomes: list[RunResult] = field(default_factory=list)

    def __enter__(self) -> Supervisor:
        self.workload.make()
        self._temporary = Path(tempfile.mkdtemp(prefix="beadline-"))
        scratch = self.workload.scratch
        self._children = Children(
            self.module, scratch, self._temporary, self.on_event, expected=self.expected
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End every process that was started here, and tidy up after the killed ones."""
        self._children.end()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def run(self, kill: Kill | None = None) -> RunResult:
        """Start a child, let it be killed as ordered, and check that it died of that.

        A child that never reaches its crash point processes its input, and ends as if left alone.
        """
        mark = self._children.mark()
        by_itself = kill is not None and kill.point != MOMENT
        order = kill.order(mark) if kill is not None and by_itself else None
        child = self._children.start(str(self.workload.folder), order=order)
        kills = 0
        if kill is not None and not by_itself:
            rng = random.Random(f"{self.workload.seed} {len(self._children.started)}")
            kills = kill_at_random(child, kill.scope, rng)
        returncode = child.wait()
        kills = kills or int(mark.exists())
        survives = kill is None or kill.survived
        if returncode == 0 and not survives:
            kills = 0  # it had just ended when the signal came
        dies = kills > 0 and not survives
        return self._ended(child, kill, returncode, kills, dies)

    def run_naive(self, crash: str = "") -> RunResult:
        """The same with plain ``foreachBatch``; ``crash`` is a step of ``beadline.demo.naive``."""
        child = self._children.start(str(self.workload.folder), "--naive", crash)
        return self._ended(child, None, child.wait(), int(bool(crash)), bool(crash))

    def _ended(
        self, child: Child, kill: Kill | None, returncode: int, kills: int, dies: bool
    ) -> RunResult:
        outcome = RunResult(kill, returncode, kills, tuple(child.events), child.seconds)
        self.outcomes.append(outcome)
        if returncode != (-signal.SIGKILL if dies else 0):
            raise RunFailed(
                f"child {len(self.outcomes)} (kill: {kill}, {kills} hit) ended with {returncode}, "
                f"not with {'SIGKILL' if dies else '0'}.\n{child.complaint()}"
            )
        return outcome
