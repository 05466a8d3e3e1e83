"""What the kill tests on Kafka share: a run that is judged, and says how to make it again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from beadline.demo.supervisor import RunFailed
from beadline.testing.servers import KafkaCluster
from beadline.verify.child import CHILD_TIMEOUT_S
from beadline.verify.plan import Kill
from tests.harness.kafka.chain import Chain, replay, run_chain
from tests.harness.kafka.check import KafkaTally
from tests.harness.kafka.run import KafkaRun, asleep
from tests.harness.kafka.workload import KafkaWorkload

# Half of the transaction timeout of these runs: nobody has waited for that. On cores that others
# use, a start of the job's first epoch alone may take most of it.
HELD_UP_MAX_S = 60.0


def judged_chain(
    cluster: KafkaCluster, folder: Path, seed: int, kills: Sequence[Kill], **settings: Any
) -> Chain:
    """Make a chain of kills; nothing may be lost, doubled, out of order, held up or left over."""
    workload = KafkaWorkload(folder, cluster.bootstrap_servers, seed, **settings)
    again = replay(workload, kills, len(cluster.brokers))
    print(again)
    try:
        chain = run_chain(cluster, workload, kills, print)
    except (RunFailed, TimeoutError) as error:
        pytest.fail(f"{error}\nreplay: {again}", pytrace=False)
    print(chain)
    judge(chain.report, again)
    if workload.transaction_timeout_s > HELD_UP_MAX_S:
        assert chain.held_up_s < HELD_UP_MAX_S, f"readers were held up; replay: {again}"
    return chain


@contextmanager
def judged_run(
    cluster: KafkaCluster, folder: Path, request: pytest.FixtureRequest, seed: int, **settings: Any
) -> Iterator[KafkaRun]:
    """Let a test do what it likes to a run; then it must come to a good end."""
    test, _, _ = request.node.nodeid.partition("@")  # behind it is a parallel worker's group
    again = f"python -m pytest '{test}' --seed {seed}"
    print(again)
    workload = KafkaWorkload(folder, cluster.bootstrap_servers, seed, **settings)
    try:
        with KafkaRun(cluster, workload, print) as run:
            yield run
            report = run.finish()
    except (RunFailed, TimeoutError) as error:
        pytest.fail(f"{error}\nreplay: {again}", pytrace=False)
    judge(report, again)


def judge(report: KafkaTally, again: str) -> None:
    assert report.exactly_once, f"{report}\nreplay: {again}"
    assert report.leftovers == (), f"transactions are open\nreplay: {again}"
    assert report.rows_in > 0


def fall_asleep(run: KafkaRun, point: str) -> int:
    """Let the job, which runs well, stop (SIGSTOP) at a point; return the process that sleeps."""
    run.running()
    run.expect_news()
    mark = run.arm(point, scope="pause")
    fell = run.wait_until(lambda: asleep(mark) > 0, CHILD_TIMEOUT_S)
    run.disarm()
    assert fell, f"nobody fell asleep at {point}"
    return asleep(mark)


def wake(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
