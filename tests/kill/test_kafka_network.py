"""The network between driver and broker is cut while it commits: unknown is asked until known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from beadline.testing.servers import KafkaCluster
from beadline.verify.child import CHILD_TIMEOUT_S, Child
from beadline.verify.proxy import TcpProxy
from tests.harness.kafka.run import KafkaRun
from tests.kill.kafka_chains import fall_asleep, judged_run, wake

CUT_S = 3.0
SEEN_S = 5.0
TRIES = 6
# Reached only after a lost answer, so here and not in the chains of kills.
END_WRITER = "kafka.end_writer"
# Longer than the driver waits for an answer.
SILENCE_S = 12.0


@pytest.fixture
def proxy(kafka_cluster: KafkaCluster) -> Iterator[TcpProxy]:
    (proxy,) = kafka_cluster.proxies
    yield proxy
    proxy.restore()


@pytest.fixture
def run(
    kafka_cluster: KafkaCluster,
    proxy: TcpProxy,
    tmp_path: Path,
    seed: int,
    request: pytest.FixtureRequest,
) -> Iterator[KafkaRun]:
    """A job whose sink goes through the proxy; feeder, source and watcher do not."""
    way = {"sink_servers": kafka_cluster.proxied_servers}
    with judged_run(kafka_cluster, tmp_path, request, seed, **way) as started:
        yield started


def committed_unheard(run: KafkaRun, proxy: TcpProxy) -> None:
    """An epoch is committed, which readers see, and its driver does not hear of it."""
    for _ in range(TRIES):
        sleeper = fall_asleep(run, "kafka.commit")
        seen = run.watcher.seen
        proxy.stall_answers()
        wake(sleeper)
        if run.watcher.wait_for(seen + 1, SEEN_S, lambda: run.children[-1].alive):
            proxy.cut()  # what was held back is lost
            return
        # A writer has a new name, and the answer to where its coordinator is did not come either.
        proxy.restore()
    pytest.fail("no commit came through")


def survived(run: KafkaRun, child: Child) -> None:
    run.expect_news()
    assert child.alive
    assert run.children == [child]
    assert "replayed" not in {line["kind"] for line in child.events}


@pytest.mark.timeout(900)
def test_a_cut_and_a_lost_answer(run: KafkaRun, proxy: TcpProxy) -> None:
    child = run.running()
    sleeper = fall_asleep(run, "kafka.commit")
    proxy.cut()
    wake(sleeper)
    time.sleep(CUT_S)
    proxy.restore()
    survived(run, child)

    committed_unheard(run, proxy)
    mark = run.arm(END_WRITER)
    proxy.restore()
    # It asked again and was told. It dies before it has seen to it that nobody repeats the request.
    assert run.wait_until(mark.exists, CHILD_TIMEOUT_S)
    run.disarm()
    assert child.wait(CHILD_TIMEOUT_S) < 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_lost_answers_that_are_lived_through(run: KafkaRun, proxy: TcpProxy) -> None:
    child = run.running()
    for _ in range(3):
        committed_unheard(run, proxy)
        proxy.restore()
        survived(run, child)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["stall", "stall_answers", "cut"])
@pytest.mark.parametrize("point", ["kafka.begun", "kafka.sent", "kafka.commit"])
def test_a_long_silence(run: KafkaRun, proxy: TcpProxy, point: str, fault: str) -> None:
    child = run.running()
    sleeper = fall_asleep(run, point)
    getattr(proxy, fault)()
    wake(sleeper)
    time.sleep(SILENCE_S)
    proxy.restore()
    survived(run, child)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_while_the_network_is_cut(run: KafkaRun, proxy: TcpProxy) -> None:
    committed_unheard(run, proxy)
    run.kill_now()
    proxy.restore()
