"""A chain of kills on one job from Kafka to Kafka, the last child left alone; then all is counted.

    python -m tests.harness.kafka.chain --seed 7 --points kafka.begun,decide.after#2/group

Starts a Kafka of its own. What it prints last is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beadline.demo.supervisor import RunFailed
from beadline.verify import plan
from beadline.verify.plan import MOMENT, Kill
from tests.harness.kafka.check import KafkaTally
from tests.harness.kafka.run import KafkaRun, Say
from tests.harness.kafka.workload import KafkaWorkload
from tests.harness.points import OF_KAFKA, parse, text

if TYPE_CHECKING:
    from beadline.testing.servers import KafkaCluster


@dataclass(frozen=True)
class Chain:
    """What a chain came to.

    ``held_up_s`` is the longest that a reader waited for new records when the job ran again,
    ``failures`` what children said that a dead broker was too much for.
    """

    killed: int
    starts: int
    missed: tuple[str, ...]
    held_up_s: float
    failures: tuple[str, ...]
    report: KafkaTally

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {**vars(self), "report": self.report.as_dict()}


def run_chain(
    cluster: KafkaCluster,
    workload: KafkaWorkload,
    kills: Sequence[Kill],
    say: Say = lambda line: None,
) -> Chain:
    """Kill one after the other, and compare when all has come through."""
    # A random moment may be one in the midst of a start.
    ahead = all(kill.point != MOMENT for kill in kills)
    deaths = sum(not kill.survived for kill in kills)
    with KafkaRun(cluster, workload, say, expected=deaths + 1 if ahead else 1) as run:
        missed = [str(kill) for kill in kills if not run.kill(kill)]
        report = run.finish()
        return Chain(
            run.kills,
            len(run.children),
            tuple(missed),
            max(run.held_up_s),
            tuple(run.failures),
            report,
        )


def replay(workload: KafkaWorkload, kills: Sequence[Kill], brokers: int) -> str:
    """The command that makes the same chain again."""
    options = [f"--brokers {brokers}", f"--timeout-s {workload.transaction_timeout_s:g}"]
    options += ["--totals"] if workload.totals else []
    command = f"python -m tests.harness.kafka.chain --seed {workload.seed} {' '.join(options)}"
    return f"{command} --points {text(kills)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make one chain and print what it came to; exit with 1 if rows were lost or doubled."""
    from beadline.testing.servers import kafka

    parser = argparse.ArgumentParser(prog="python -m tests.harness.kafka.chain")
    parser.add_argument("--seed", type=int, default=0, help="of the input, the order, the moments")
    parser.add_argument("--points", help="kills in order, with commas between; all if left out")
    parser.add_argument("--brokers", type=int, default=1, help="1 or 3")
    parser.add_argument("--timeout-s", type=float, default=120, help="of transactions")
    parser.add_argument("--totals", action="store_true", help="SQLite as the second sink")
    given = parser.parse_args(arguments)
    of_job = plan.every_point(given.seed, OF_KAFKA)
    kills = parse(given.points) if given.points else of_job
    folder = Path(tempfile.mkdtemp(prefix="beadline-kills-"))
    fine = False
    with kafka(given.brokers) as cluster:
        workload = KafkaWorkload(
            folder, cluster.bootstrap_servers, given.seed, given.totals, given.timeout_s
        )
        try:
            chain = run_chain(cluster, workload, kills, print)
            fine = chain.report.exactly_once and not (chain.missed or chain.report.leftovers)
            print(json.dumps({"seed": given.seed, **chain.as_dict()}))
        except RunFailed as error:
            print(f"{error}\nThe folder is kept: {folder}", file=sys.stderr)
    if fine:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
