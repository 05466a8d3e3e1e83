"""The checker: what came out of a run against what went in. It only observes.

The input is read back from the source topic, the output by a new ``read_committed`` consumer, both
as multisets; the watcher, who saw the output come, has its own say.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.demo.check import Tally, compare_rows
from beadline.demo.workload import TOTALS
from tests.harness.kafka import watch
from tests.harness.kafka.workload import OUT, KafkaWorkload

if TYPE_CHECKING:
    from beadline.testing.servers import KafkaCluster
    from beadline.testing.servers.kafka import KafkaRecord

Row = tuple[str, int]


@dataclass(frozen=True)
class KafkaTally(Tally):
    """What a run came to; ``problems`` are records that were not the next of their key."""

    problems: tuple[str, ...] = ()

    @property
    def exactly_once(self) -> bool:
        """Nothing lost, nothing twice, everything in order, and totals right."""
        return super().exactly_once and not self.problems


def check(cluster: KafkaCluster, workload: KafkaWorkload, watched: Sequence[str]) -> KafkaTally:
    """Compare a whole run, when its last child has stopped; the watcher has said ``watched``."""
    wanted = Counter(_rows(cluster.read(workload.source)))
    records = cluster.read(workload.target)
    found = Counter(_rows(records))
    return KafkaTally(
        rows_in=wanted.total(),
        rows_bad=0,
        sinks={OUT: compare_rows(wanted, found)},
        torn=0,
        problems=(*watched, *_disorder(records)),
        totals_right=not workload.totals or _read_totals(workload) == _totals_of(wanted),
        leftovers=tuple(open_transactions(cluster, workload)),
    )


def open_transactions(cluster: KafkaCluster, workload: KafkaWorkload) -> list[str]:
    """The transactional ids of the job under which something is open."""
    from kafka import KafkaAdminClient

    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))) as admin:
        listed = admin.list_transactions(state_filters=["Ongoing"])
    names = (one.transactional_id for found in listed.values() for one in found)
    return sorted(name for name in names if f"~{workload.name}~" in name)


def _rows(records: Iterable[KafkaRecord]) -> Iterable[Row]:
    for record in records:
        assert record.key is not None
        assert record.value is not None
        yield record.key.decode(), int(record.value)


def _disorder(records: Sequence[KafkaRecord]) -> list[str]:
    """A key is in one partition, and the records come partition by partition."""
    sequence = watch.Sequence()
    for record, (key, number) in zip(records, _rows(records), strict=True):
        sequence.take(key, number, f"{record.partition}/{record.offset}")
    return sequence.problems


def _totals_of(rows: Counter[Row]) -> dict[str, Row | tuple[int, int]]:
    totals: dict[str, Any] = {}
    for (key, number), count in rows.items():
        before = totals.get(key, (0, 0))
        totals[key] = (before[0] + count, before[1] + count * number)
    return totals


def _read_totals(workload: KafkaWorkload) -> dict[str, Any]:
    """The job has stopped, so the database can be opened where it is."""
    with closing(sqlite3.connect(workload.database)) as database:
        found = database.execute(f"SELECT key, rows, numbers FROM {TOTALS}").fetchall()
    return {key: (rows, numbers) for key, rows, numbers in found}
