"""A chain of kills on one checkpoint, the last child left alone; then all is counted.

    python -m tests.harness.chain --seed 7 --points decide.before,decide.after#2/group

What it prints last is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from beadline.demo.check import Tally, check
from beadline.demo.supervisor import JOB, RunFailed, RunResult, Supervisor
from beadline.demo.workload import Workload
from beadline.verify import plan
from beadline.verify.plan import MOMENT, Kill
from tests.harness.points import parse, text

# Epochs that are left before each start: a child may have to finish one, reaches its point for the
# second time one later, and a killed worker's task is tried again in the presence of more.
BACKLOG = 4


@dataclass(frozen=True)
class Run:
    """A whole run: every child, and what came out in the end."""

    seed: int
    kills: tuple[Kill, ...]
    outcomes: tuple[RunResult, ...]
    report: Tally

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
    return f"python -m tests.harness.chain --seed {seed} --points {text(kills)}"


def feed(workload: Workload, backlog: int) -> None:
    """Write input files until this number is left for Spark to read as epochs."""
    commits = workload.checkpoint / "commits"
    names = os.listdir(commits) if commits.is_dir() else []
    done = 1 + max((int(name) for name in names if name.isdigit()), default=-1)
    workload.add(max(0, backlog - (len(workload.files()) - done)))


def run_chain(
    workload: Workload,
    kills: Sequence[Kill],
    say: Callable[[str], None] = lambda line: None,
    judge: Callable[[Workload], Tally] = check,
    module: str = JOB,
) -> Run:
    """Kill one child after the other, run a last one undisturbed, and compare."""
    # A random moment may be one in the midst of a start.
    ahead = all(kill.point != MOMENT for kill in kills)
    with Supervisor(workload, module=module, expected=len(kills) + 1 if ahead else 1) as supervisor:
        for kill in kills:
            feed(workload, BACKLOG + kill.occurrence)
            outcome = supervisor.run(kill)
            say(f"{outcome.seconds:5.1f} s  {kill}: {outcome.kills} killed")
            twice = judge(workload).duplicated
            if twice:
                raise RunFailed(f"{twice} rows show twice after the kill at {kill}")
        feed(workload, 1)
        last = supervisor.run()
        say(f"{last.seconds:5.1f} s  undisturbed")
        outcomes = tuple(supervisor.outcomes)
    return Run(workload.seed, tuple(kills), outcomes, judge(workload))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make one run and print its report; exit with 1 if rows were lost or doubled."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.chain")
    parser.add_argument("--seed", type=int, default=0, help="of the input, the order, the moments")
    parser.add_argument(
        "--points", help="kills in order, with commas between; every crash point if left out"
    )
    parser.add_argument("--folder", type=Path, help="an empty folder, kept; temporary if left out")
    given = parser.parse_args(arguments)
    kills = parse(given.points) if given.points else plan.every_point(given.seed)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="beadline-kills-"))
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
