"""The only broker dies while records are on their way to it, and stays away for long."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.observe import Event
from beadline.sinks import KafkaSink
from beadline.testing.servers import KafkaCluster
from tests.slowness import patient
from tests.spark.jobs import read, run, write_input

ROWS = 10_000
AWAY_S = (
    12.0  # at least: the query is to say meanwhile that it waits, which takes up to twenty seconds
)
SOON_S = patient(60.0)
TOPIC = "outage"
# A short queue and small requests: the sink is still sending when the first records are there.
SLOWLY = {"queue.buffering.max.messages": 100, "batch.num.messages": 20}


class Outage:
    """What the test does to the broker, and what the query says meanwhile."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._waited = threading.Event()
        self.events: list[Event] = []

    def listen(self, event: Event) -> None:
        self.events.append(event)
        if event.kind == "waiting":
            self._waited.set()

    def happen(self) -> tuple[int, list[Event]]:
        """Return how many records the broker had at its death, and the events of its absence."""
        (broker,) = self._cluster.brokers
        deadline_s = time.monotonic() + SOON_S
        while not (taken := sum(self._cluster.end_offsets(TOPIC).values())):
            assert time.monotonic() < deadline_s, "nothing was produced"
        broker.kill()
        self._waited.clear()
        began_s, before = time.monotonic(), len(self.events)
        self._waited.wait(SOON_S)
        time.sleep(max(0.0, AWAY_S - (time.monotonic() - began_s)))
        meanwhile = self.events[before:]
        broker.start()
        return taken, meanwhile


def test_a_broker_that_dies_while_records_are_produced(
    spark: SparkSession, mortal_kafka: KafkaCluster, tmp_path: Path
) -> None:
    """The query says that it waits, and then continues by itself."""
    mortal_kafka.create_topic(TOPIC, partitions=2)
    ids = write_input(tmp_path / "in", 2, rows=ROWS)
    rows = read(spark, tmp_path / "in").selectExpr("cast(id as string) as value")
    sink = KafkaSink(TOPIC, bootstrap_servers=mortal_kafka.bootstrap_servers, options=SLOWLY)
    outage = Outage(mortal_kafka)
    with ThreadPoolExecutor(1) as beside:
        happening = beside.submit(outage.happen)
        run(exactly_once(rows, "cut-off").to(sink), tmp_path, listener=outage.listen)
        taken, meanwhile = happening.result()
    assert taken < ROWS / 2, "the epoch was nearly through"
    assert {(event.kind, event.epoch) for event in meanwhile} == {("waiting", 0)}
    assert meanwhile[0].details["doing"] == "preparing"
    acts = [(event.kind, event.epoch) for event in outage.events if event.kind != "waiting"]
    whole = [(kind, epoch) for epoch in (0, 1) for kind in ("prepared", "decided", "committed")]
    assert acts == [("claimed", None), *whole]
    mortal_kafka.wait_ready()
    assert sorted(int(record.value or b"") for record in mortal_kafka.read(TOPIC)) == ids
