"""Dead-letter records and lost parts: of the sink that refuses, of the other, or of both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from beadline import Stream, exactly_once
from beadline.sink import Part
from tests.spark.expiring import ExpiringSink, Held
from tests.spark.jobs import run, run_and_die
from tests.spark.test_dead_letter import REFUSED, SCHEMA, TAKEN, A, B, C, ids


@dataclass(frozen=True)
class ExpiringOwner(ExpiringSink):
    """Forgets transactions, and refuses rows without ``k``."""

    @property
    def default_name(self) -> str:
        return "owner"

    def prepare(self, rows: Any, part: Part) -> Held | None:
        import pyarrow.compute as pc

        def good(batch: Any) -> Any:
            bad = pc.is_null(batch.column("k"))
            if pc.any(bad).as_py():
                part.refuse(batch.filter(bad), "no k")
            return batch.filter(pc.invert(bad))

        return super().prepare(map(good, rows), part)


@pytest.mark.parametrize("lost", ["owner", "letters", "both"])
def test_lost_parts_of_either_sink(spark: SparkSession, tmp_path: Path, lost: str) -> None:
    owner = ExpiringOwner(str(tmp_path / "owner"))
    letters = ExpiringSink(str(tmp_path / "letters"))
    rows = tmp_path / "in"
    rows.mkdir()
    (rows / "0.json").write_text("\n".join(json.dumps(row) for row in [*A, *B, *C]))

    def build() -> Stream:
        frame = spark.readStream.schema(SCHEMA).json(str(rows)).repartition(2, "id")
        return exactly_once(frame, "job").to(owner, dead_letter=letters)

    run_and_die(build(), tmp_path, "decide.after")
    for name, sink in (("owner", owner), ("letters", letters)):
        assert sink.open_names()
        if lost in (name, "both"):
            sink.expire(9)
    run(build(), tmp_path)
    assert sorted(row["id"] for row in owner.visible()) == TAKEN
    assert ids(letters.visible()) == REFUSED
    assert owner.open_names() == letters.open_names() == []
