"""Latency from produce to visible under ``read_committed``, at a steady 5,000 records a second.

Spark's own at-least-once sink, as it comes, and Beadline, one after the other, many times over; the
first turn of each and the first seconds of every turn are not counted. What is reported is the
median over the turns of the ratio in each. Each record carries the moment at which it was produced.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from pyspark.sql import SparkSession

from beadline.observe import Event
from beadline.testing.servers import KafkaCluster
from bench._common import spread
from bench._kafka import Side, make_side

RATE = 5_000
WARM_S = float(os.environ.get("BENCH_LATENCY_WARM_S", "6"))
COUNT_S = float(os.environ.get("BENCH_LATENCY_S", "12"))
TURNS = int(os.environ.get("BENCH_LATENCY_TURNS", "10"))
PERIOD_S = 0.01
# Spark's names for its own steps of an epoch.
SPARK_STEPS = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")


class Steps:
    """When Beadline's steps of an epoch were."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}
        self.took_ms: dict[str, list[float]] = defaultdict(list)

    def listen(self, event: Event) -> None:
        now_s = time.perf_counter()
        before = {"decided": "prepared", "committed": "decided"}.get(event.kind)
        if before in self._at_s:
            name = {"decided": "decide", "committed": "commit"}[event.kind]
            self.took_ms[name].append((now_s - self._at_s[before]) * 1000)
        self._at_s[event.kind] = now_s


def latency(spark: SparkSession, cluster: KafkaCluster, folder: Path) -> dict[str, Any]:
    """Compare the two, and say where an epoch's time goes."""
    seen: dict[str, list[float]] = {"spark": [], "exactly_once": []}
    spark_steps: dict[str, list[Any]] = {"spark": [], "exactly_once": []}
    steps = Steps()
    ratios: dict[int, list[float]] = {50: [], 99: []}
    for turn in range(-1, TURNS):
        at: dict[str, dict[int, float]] = {}
        for kind in ("spark", "exactly_once") if turn % 2 == 0 else ("exactly_once", "spark"):
            name = f"latency-{kind}-{turn + 1}"
            listener = steps.listen if kind == "exactly_once" else None
            side = make_side(spark, cluster, folder, kind, name=name, listener=listener)
            found = measure(cluster, side)
            at[kind] = {p: percentile(found, p) for p in (50, 99)}
            print(f"{name}: p50 {at[kind][50]:.0f} ms, p99 {at[kind][99]:.0f} ms", flush=True)
            if turn >= 0:
                spark_steps[kind] += side.progress()[-50:]
                seen[kind] += found
            side.query.stop()
        for p in (50, 99) if turn >= 0 else ():
            ratios[p].append(at["exactly_once"][p] / at["spark"][p])
    goes = {
        kind: {
            step: round(statistics.median(one["durationMs"].get(step, 0) for one in done), 1)
            for step in SPARK_STEPS
        }
        for kind, done in spark_steps.items()
    }
    for step, took in steps.took_ms.items():
        goes["exactly_once"][step] = round(statistics.median(took), 1)
    return {
        "latency_p50_vs_spark": round(statistics.median(ratios[50]), 3),
        "latency_p99_vs_spark": round(statistics.median(ratios[99]), 3),
        "latency_vs_spark_spread": {f"p{p}": spread(found) for p, found in ratios.items()},
        "latency_ms": {
            kind: {f"p{p}": round(percentile(found, p), 1) for p in (50, 99)}
            for kind, found in seen.items()
        },
        "where_the_time_goes_ms": goes,
    }


def percentile(values: list[float], wanted: int) -> float:
    """The usual one."""
    return sorted(values)[min(len(values) - 1, int(len(values) * wanted / 100))]


def measure(cluster: KafkaCluster, side: Side) -> list[float]:
    """Produce at a steady rate, read what becomes visible, and return the times between."""
    over = threading.Event()
    producing = threading.Thread(target=produce, args=(cluster, side.source, over), daemon=True)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"latency-{side.name}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 5,
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([side.target])
    producing.start()
    found: list[float] = []
    begin_s = time.monotonic()
    while (now_s := time.monotonic()) < begin_s + WARM_S + COUNT_S:
        messages = consumer.consume(1000, 0.005)
        seen_ns = time.time_ns()
        if now_s > begin_s + WARM_S:
            found += [
                (seen_ns - int((message.value() or b"")[:20])) / 1e6
                for message in messages
                if message.error() is None
            ]
    over.set()
    producing.join()
    consumer.close()
    return found


def produce(cluster: KafkaCluster, topic: str, over: threading.Event) -> None:
    """A number of records every ten milliseconds, each with the time in it."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 1})
    each = int(RATE * PERIOD_S)
    due_s = time.monotonic()
    number = 0
    while not over.is_set():
        now = b"%020d" % time.time_ns()
        batch = [{"value": now + b"x" * 72, "key": b"%08d" % (number + i)} for i in range(each)]
        producer.produce_batch(topic, batch)
        producer.poll(0)
        number += each
        due_s += PERIOD_S
        time.sleep(max(0.0, due_s - time.monotonic()))
    producer.flush()
