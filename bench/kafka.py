"""Kafka to Kafka beside Spark's own sink: ``make bench-kafka``.

One broker on the same machine. Throughput: three queries run all the time, Spark's own Kafka sink
(at-least-once), Beadline exactly once and Beadline at least once, with the same consumer and
producer settings. In turns each is given a million records, which become visible at once and are
one epoch; what counts is the time of that epoch, with Spark's own logs, from its trigger to its
end. Then the commit of 64 parts, the memory of the workers in an epoch of ten million rows, and
the latency at 5,000 records a second (``bench/_kafka_latency.py``).
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.observe import Event
from beadline.sinks import KafkaSink
from beadline.testing.servers import KafkaCluster, kafka
from bench._common import quiet_session, report, spread
from bench._kafka import Feeder, Side, end_of, make_side, wait_for
from bench._kafka_latency import latency

RECORDS = int(os.environ.get("BENCH_RECORDS", "1000000"))
PAIRS = int(os.environ.get("BENCH_PAIRS", "36"))  # single epochs vary by a fifth
WARM_UP = 10  # rounds, until Java has compiled what runs in all of them
BIG_EPOCH_ROWS = int(os.environ.get("BENCH_BIG_ROWS", "10000000"))
ONLY = os.environ.get("BENCH_ONLY", "").split()  # names of functions here; all unless given
SIDES = ("spark", "exactly_once", "at_least_once")
ORDERS = list(itertools.permutations(SIDES))  # in turn, so that none always follows the same one


def throughput(spark: SparkSession, cluster: KafkaCluster, folder: Path) -> dict[str, Any]:
    """Records per second of each side, and the ratios of each round."""
    feeder = Feeder(cluster)
    options = {"minOffsetsPerTrigger": str(RECORDS)}
    sides = {
        kind: make_side(
            spark, cluster, folder, kind, name=kind, options=options, every="250 milliseconds"
        )
        for kind in SIDES
    }
    rates: dict[str, list[float]] = {kind: [] for kind in SIDES}
    for round_ in range(-WARM_UP, PAIRS):
        for kind in ORDERS[round_ % len(ORDERS)]:
            rate = one_epoch(feeder, sides[kind], round_ + WARM_UP + 1)
            if round_ >= 0:
                rates[kind].append(rate)
        print(f"round {round_}: " + ", ".join(f"{k} {r[-1]:,.0f}/s" for k, r in rates.items() if r))
    for side in sides.values():
        side.query.stop()
    for kind in SIDES:
        used = end_of(cluster, f"{kind}-out")
        assert used >= RECORDS * (PAIRS + WARM_UP), f"{kind} lost records"
    pairs = list(zip(rates["exactly_once"], rates["spark"], rates["at_least_once"], strict=True))
    return {
        "vs_spark_at_least_once": round(statistics.median(e / s for e, s, _ in pairs), 3),
        "vs_spark_spread": spread([e / s for e, s, _ in pairs]),
        "vs_own_at_least_once": round(statistics.median(e / a for e, _, a in pairs), 3),
        "vs_own_spread": spread([e / a for e, _, a in pairs]),
        "own_at_least_once_vs_spark": round(statistics.median(a / s for _, s, a in pairs), 3),
        "records_per_s": {kind: spread(rates[kind]) for kind in SIDES},
    }


def one_epoch(feeder: Feeder, side: Side, number: int) -> float:
    """Give a side its records and return how many it carried through in a second."""
    feeder.feed(side.source, RECORDS)
    done = wait_for(side, RECORDS * number)
    last = done[-1]
    assert last["numInputRows"] == RECORDS, f"not one epoch: {last['numInputRows']} rows"
    seconds = last["durationMs"]["triggerExecution"] / 1000
    return RECORDS / float(seconds)


def rate_stream(spark: SparkSession, rows: int, parts: int) -> Any:
    """Rows of 100 bytes without a source to wait for."""
    source = spark.readStream.format("rate-micro-batch")
    source = source.option("rowsPerBatch", rows).option("numPartitions", parts)
    value = "lpad(cast(value as string), 92, 'x') as value"
    return source.load().selectExpr("lpad(cast(value as string), 8, '0') as key", value)


def commit_64_parts(spark: SparkSession, cluster: KafkaCluster, folder: Path) -> dict[str, Any]:
    """How long the driver takes to commit 64 transactions."""
    cluster.create_topic("many-parts", partitions=2)
    decided_s: dict[int, float] = {}
    took_ms: list[float] = []

    def listen(event: Event) -> None:
        if event.epoch is None:
            return
        if event.kind == "decided":
            decided_s[event.epoch] = time.perf_counter()
        elif event.kind == "committed":
            took_ms.append((time.perf_counter() - decided_s[event.epoch]) * 1000)

    stream = exactly_once(rate_stream(spark, 6400, 64), "many-parts").to(
        KafkaSink("many-parts", bootstrap_servers=cluster.bootstrap_servers)
    )
    query = stream.start(str(folder / "many-parts"), listener=listen)
    while len(took_ms) < 35:
        time.sleep(0.2)
        if (failure := query.exception()) is not None:
            raise failure
    query.stop()
    steady = took_ms[5:35]
    return {
        "commit_64_parts_ms_p50": round(statistics.median(steady), 1),
        "commit_64_parts_ms": spread(steady),
    }


def worker_memory(spark: SparkSession, cluster: KafkaCluster, folder: Path) -> dict[str, Any]:
    """The largest resident size of any Python worker while an epoch of ten million rows runs."""
    cluster.create_topic("big-epoch", partitions=2)
    over = threading.Event()
    largest: list[int] = [0]

    def watch() -> None:
        while not over.wait(0.2):
            largest[0] = max(largest[0], *worker_rss_kb(), 0)

    stream = exactly_once(rate_stream(spark, BIG_EPOCH_ROWS, 2), "big-epoch").to(
        KafkaSink("big-epoch", bootstrap_servers=cluster.bootstrap_servers)
    )
    committed = threading.Event()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    query = stream.start(
        str(folder / "big-epoch"),
        listener=lambda e: committed.set() if e.kind == "committed" else None,
    )
    while not committed.wait(0.5):
        if (failure := query.exception()) is not None:
            raise failure
    over.set()
    query.stop()
    return {"worker_rss_mb_max": round(largest[0] / 1024), "big_epoch_rows": BIG_EPOCH_ROWS}


def worker_rss_kb() -> list[int]:
    """Resident sizes of this machine's PySpark workers that descend from us."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = (status.parent / "cmdline").read_bytes()
            if b"pyspark.daemon" not in command:
                continue
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except (OSError, ValueError):
            continue
        found.append(int(fields.get("VmRSS", "0 kB").split()[0]))
    return found


def main() -> None:
    """Run everything on one broker."""
    spark = quiet_session(connectors=("kafka",))
    with kafka() as cluster, tempfile.TemporaryDirectory(prefix="beadline-bench-") as name:
        folder = Path(name)
        figures: dict[str, Any] = {}
        for measure in (throughput, commit_64_parts, worker_memory, latency):
            if not ONLY or measure.__name__ in ONLY:
                figures |= measure(spark, cluster, folder)
        report(benchmark="kafka", records=RECORDS, pairs=PAIRS, **figures)


if __name__ == "__main__":
    main()
