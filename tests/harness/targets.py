"""The workload's rows into any sinks: what the kill tests of databases and stores run.

``python -m tests.harness.targets FOLDER`` is the demo's job with other sinks: the folder holds
``targets.json``, which says where the rows go instead of files and SQLite. What shows in a target
is read by the checker, with a client of its own: nothing that is judged has a say in the
judgement.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from beadline.demo.check import Tally, compare_rows, compare_totals, torn
from beadline.demo.job import clean_rows, main, totals
from beadline.demo.workload import NAME, DemoRow, Total, Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from beadline.stream import Stream

JOB = "tests.harness.targets"
_FILE = "targets.json"


@dataclass(frozen=True)
class Target:
    """One sink of the job: its class in ``beadline.sinks``, and what it is made of.

    ``totals`` says that it is given the epoch's rows and amount per key, not the rows. ``select``
    makes other columns of them, in SQL.
    """

    name: str
    sink: str
    settings: dict[str, Any]
    totals: bool = False
    select: tuple[str, ...] = ()


def save(workload: Workload, targets: Iterable[Target]) -> None:
    """Say where the rows go, before the first start."""
    workload.make()
    found = [asdict(target) for target in targets]
    (workload.folder / _FILE).write_text(json.dumps(found), "utf-8")


def load(workload: Workload) -> list[Target]:
    """Where the rows go."""
    found = json.loads((workload.folder / _FILE).read_text("utf-8"))
    return [Target(**{**one, "select": tuple(one["select"])}) for one in found]


def stream(spark: SparkSession, workload: Workload) -> Stream:
    """The job: every target in the same epochs."""
    from beadline import exactly_once, sinks

    job = exactly_once(clean_rows(spark, workload), name=NAME)
    for target in load(workload):
        sink = getattr(sinks, target.sink)(**target.settings)
        job = job.to(sink, rows=_shape(target), name=target.name)
    return job


def _shape(target: Target) -> Callable[[DataFrame], DataFrame]:
    def shape(frame: DataFrame) -> DataFrame:
        found = totals(frame) if target.totals else frame
        return found.selectExpr(*target.select) if target.select else found

    return shape


@dataclass(frozen=True)
class Judge:
    """Compares what shows in each target with what went in.

    ``keyed`` names targets that keep one row per id: rows that are there twice in the input, on
    purpose, show in them once.
    """

    rows: Mapping[str, Callable[[], Counter[DemoRow]]]
    totals: Mapping[str, Callable[[], dict[str, Total]]]
    leftovers: Callable[[], Iterable[str]] = tuple
    keyed: frozenset[str] = frozenset()

    def __call__(self, workload: Workload) -> Tally:
        """Look at every target now."""
        expected = workload.expected()
        once = Counter(set(expected.rows))
        shown = {name: read() for name, read in self.rows.items()}
        added = {name: read() for name, read in self.totals.items()}
        return Tally(
            rows_in=expected.rows.total(),
            rows_bad=expected.bad,
            sinks={
                name: compare_rows(once if name in self.keyed else expected.rows, found)
                for name, found in shown.items()
            }
            | {name: compare_totals(expected.totals, found) for name, found in added.items()},
            torn=sum(torn(expected, f) for name, f in shown.items() if name not in self.keyed),
            totals_right=all(found == expected.totals for found in added.values()),
            leftovers=tuple(self.leftovers()),
        )


if __name__ == "__main__":
    main(build=stream)
