"""What ``FileSink.check`` refuses, with a reason and before anything is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink
from beadline.files.local import LocalFiles
from beadline.ids import QueryId
from beadline.sink import Guarantee
from beadline.sinks import FileSink
from beadline.sinks._file_moves import parent
from beadline.sinks.files import PendingFiles

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("tags", pa.list_(pa.string()))])
QUERY = QueryId("orders", "a" * 32, "file:/nowhere/checkpoint")


def test_what_is_promised(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "a" / "out") + "/", partition_by="day", options={"x": True})
    found = sink.check(SCHEMA, QUERY)
    assert found.guarantee is Guarantee.EXACTLY_ONCE
    assert found.target == f"file:{tmp_path}/a/out"
    assert not found.atomic
    assert sink.default_name == "files-out"
    assert list(tmp_path.iterdir()) == [], "check creates nothing"
    assert FileSink(tmp_path / "out") == FileSink(str(tmp_path / "out"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"format": "text"}, "'text' is not one of parquet, orc, json, csv"),
        ({"options": {"compression": "zip"}}, "no compression 'zip'"),
        ({"options": {"path": "/elsewhere"}}, "cannot be given"),
        ({"options": {"mapreduce.fileoutputcommitter.algorithm.version": 2}}, "cannot be given"),
        ({"options": {"header": None}}, "option 'header' is a NoneType"),
        ({"partition_by": ("hour",)}, "'hour', which is not a column"),
        ({"partition_by": ("tags",)}, "nested column 'tags'"),
        ({"partition_by": ("day", "Day")}, "a column twice"),
        ({"format": "csv"}, "'tags' is nested, which csv cannot hold"),
    ],
)
def test_settings_that_cannot_be_right(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadSink, match=reason):
        FileSink(str(tmp_path / "out"), **settings).check(SCHEMA, QUERY)
    assert list(tmp_path.iterdir()) == []


VARIANT = pa.struct(
    [("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]
)


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        (pa.null(), ("parquet", "orc", "json", "csv")),
        (pa.list_(pa.null()), ("parquet", "orc", "json", "csv")),
        (pa.map_(pa.string(), pa.struct([("x", pa.null())])), ("parquet", "orc", "json", "csv")),
        (pa.duration("us"), ("parquet", "orc", "json", "csv")),
        (pa.time64("ns"), ("parquet", "orc", "json", "csv")),
        (pa.struct([]), ("parquet", "orc", "json", "csv")),
        (pa.struct([("x", pa.int64())]), ("csv",)),
        (pa.binary(), ("csv",)),
        (VARIANT, ("orc", "csv")),
        (pa.decimal128(10, 2), ()),
        (pa.timestamp("us"), ()),
    ],
)
def test_types_that_a_format_cannot_hold(
    tmp_path: Path, kind: pa.DataType, refused: tuple[str, ...]
) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", kind)])
    for format_ in ("parquet", "orc", "json", "csv"):
        sink = FileSink(str(tmp_path / "out"), format_)
        if format_ not in refused:
            sink.check(schema, QUERY)
            continue
        with pytest.raises(BadSink, match="column 'x'"):
            sink.check(schema, QUERY)


def test_names_that_differ_by_case_only(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("ID", pa.int64())])
    with pytest.raises(BadSink, match="upper and lower case"):
        FileSink(str(tmp_path / "out")).check(schema, QUERY)


def test_no_column_left_for_the_files(tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.date32())])
    with pytest.raises(BadSink, match="no column remains"):
        FileSink(str(tmp_path / "out"), partition_by=("day",)).check(schema, QUERY)
    with pytest.raises(BadSink, match="no column remains"):
        FileSink(str(tmp_path / "out")).check(pa.schema([]), QUERY)


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(BadSink, match="is a file, not a folder"):
            FileSink(str(path)).check(SCHEMA, QUERY)
    for root in ("/", " ", ""):
        with pytest.raises(BadSink, match="below a root"):
            FileSink(root).check(SCHEMA, QUERY)
    # Asked, not tried: the tests may run as root, who may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BadSink, match=f"may not write in file:{tmp_path}"):
        FileSink(str(tmp_path / "a" / "out")).check(SCHEMA, QUERY)


def test_places_that_must_be_apart(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(BadSink, match="where readers look"):
        FileSink(str(out), staging=str(out / "staging")).check(SCHEMA, QUERY)
    for checkpoint in (tmp_path, out, out / "checkpoint"):
        query = QueryId("orders", "a" * 32, f"file:{checkpoint}")
        with pytest.raises(BadSink, match="must be apart"):
            FileSink(str(out)).check(SCHEMA, query)


def test_a_mount_point_as_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalFiles, "same_volume", lambda self, one, other: one == other)
    FileSink(str(tmp_path / "new" / "out")).check(SCHEMA, QUERY)
    (tmp_path / "out").mkdir()
    with pytest.raises(BadSink, match="mount point"):
        FileSink(str(tmp_path / "out")).check(SCHEMA, QUERY)


def test_the_folder_above() -> None:
    assert parent("file:/data/out") == "file:/data"
    assert parent("file:/data") == parent("file:/") == "file:/"
    assert parent("hdfs://host:9000/a/b") == "hdfs://host:9000/a"
    assert parent("hdfs://host:9000/a") == parent("hdfs://host:9000/") == "hdfs://host:9000/"


def test_version_1_of_the_committable_stays_readable() -> None:
    stored = {
        "version": 1,
        "target": "file:/x/out",
        "folder": "file:/x/.out.beadline/id",
        "files": [["d=1/p.orc", 7]],
    }
    read = PendingFiles.from_json(stored)
    assert read == PendingFiles("file:/x/out", "file:/x/.out.beadline/id", (("d=1/p.orc", 7),))
