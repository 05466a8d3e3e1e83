"""Two drivers of one job from Kafka to Kafka at a time, and sleepers that wake too late."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from beadline.testing.servers import KafkaCluster
from beadline.verify.child import CHILD_TIMEOUT_S
from tests.harness.kafka.run import KafkaRun
from tests.kill.kafka_chains import fall_asleep, judged_run, wake

FENCED = 4
TIMEOUT_S = 4.0  # of transactions

Start = Callable[..., AbstractContextManager[KafkaRun]]


@pytest.fixture
def start(
    kafka_cluster: KafkaCluster, tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> Start:
    return partial(judged_run, kafka_cluster, tmp_path, request, seed)


@pytest.mark.timeout(900)
def test_a_second_driver_while_the_first_still_runs(start: Start) -> None:
    with start() as run:
        first = run.running()
        run.expect_news()
        second = run.start()
        assert first.wait(CHILD_TIMEOUT_S) == FENCED, first.complaint()
        run.expect_news()
        assert second.alive
        claimed = [line["generation"] for line in second.events if line["kind"] == "claimed"]
        assert claimed == [2]


@pytest.mark.timeout(900)
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("point", "replayed"),
    [
        ("kafka.sent", True),  # a worker: its task is tried again, other parts are lost
        ("kafka.prepared", True),
        ("decide.before", True),
        ("kafka.commit", True),
        ("kafka.answered", False),
    ],
)
def test_a_sleep_past_the_timeout(start: Start, point: str, replayed: bool) -> None:
    """The brokers abort what is open meanwhile; what was decided then is computed again."""
    with start(transaction_timeout_s=TIMEOUT_S) as run:
        sleeper = fall_asleep(run, point)
        child = run.running()
        if replayed:  # one that fell asleep early may not have come to Kafka yet, nor its siblings
            assert run.wait_until(lambda: bool(run.open_transactions()), CHILD_TIMEOUT_S)
        run.wait_for_expiry()
        wake(sleeper)
        run.expect_news()
        assert child.alive
        kinds = [line["kind"] for line in child.events]
        assert ("replayed" in kinds) == replayed, kinds[-20:]


@pytest.mark.timeout(900)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("timeout_s", [TIMEOUT_S, 120.0])
@pytest.mark.parametrize(
    "point", ["kafka.prepared", "decide.before", "decide.after", "kafka.commit"]
)
def test_a_sleeper_after_another_has_taken_over(start: Start, point: str, timeout_s: float) -> None:
    """It wakes when the other one is well under way, whose transactions have the same names."""
    with start(transaction_timeout_s=timeout_s) as run:
        sleeper = fall_asleep(run, point)
        first = run.running()
        second = run.start()
        run.expect_news()
        wake(sleeper)
        code = first.wait(CHILD_TIMEOUT_S)
        # Its own Spark may notice the other one's files before it comes to decide; never success.
        assert code != 0, first.complaint()
        if point in ("kafka.prepared", "decide.before"):
            assert code == FENCED, first.complaint()
        run.expect_news()
        assert second.alive
