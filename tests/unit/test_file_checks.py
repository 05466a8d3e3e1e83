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
from beadline.sinks.files.moves import parent
from beadline.sinks.files.sink import PendingFiles

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
def test_wrong_settings(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadSink, match=reason):
        FileSink(str(tmp_path / "out"), **settings).check(SCHEMA, QUERY)
    assert list(tmp_path.iterdir()) == []


TEXTS = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string())])
TIMES = pa.schema(
    [("d", pa.date32()), ("n", pa.timestamp("us")), ("t", pa.list_(pa.timestamp("us", "UTC")))]
)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"encoding": "ISO-8859-1"}, "must be UTF-8"),
        ({"lineSep": ";"}, "'lineSep' must be a newline"),
        ({"ignoreLeadingWhiteSpace": True}, "cuts blanks"),
        ({"ignoreTrailingWhiteSpace": "true"}, "cuts blanks"),
        ({"quote": ""}, "a newline in a value begins a row"),
        ({"escape": "'"}, "'escape' must be the quote character"),
        ({"charToEscapeQuoteEscaping": "x"}, "'escape' must be the quote character"),
        ({"escapeQuotes": False}, "a value with a quote would change"),
        ({"sep": "||"}, "must be one character"),
        ({"sep": '"'}, "not quote, backslash or newline"),
        ({"comment": "#"}, "turn rows into comments"),
        ({"emptyValue": ""}, "empty text look like another value"),
        ({"nullValue": "a,b"}, "must be plain text"),
        ({"nullValue": "-1"}, "which a number or a boolean may be written as"),
        ({"nullValue": "NaN"}, "which a number or a boolean may be written as"),
        ({"quoteAll": True}, "null and empty text are both written"),
    ],
)
def test_options_of_csv_that_lose_values(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadSink, match=reason):
        FileSink(str(tmp_path / "out"), "csv", options=options).check(TEXTS, QUERY)


def test_options_that_lose_nothing(tmp_path: Path) -> None:
    for options in (
        {"sep": ";", "header": True, "quote": "'", "escape": "'"},
        {"escape": "\\"},
        {"nullValue": "\\N", "quoteAll": True, "encoding": "utf-8", "lineSep": "\n"},
        {"ignoreLeadingWhiteSpace": False, "emptyValue": '""', "compression": "gzip"},
    ):
        FileSink(str(tmp_path / "out"), "csv", options=options).check(TEXTS, QUERY)


def test_the_only_column_of_a_csv_file(tmp_path: Path) -> None:
    """Spark leaves out a line that would be empty, and so would lose nulls."""
    nullable = pa.schema([("day", pa.int64()), ("note", pa.string())])
    out = str(tmp_path / "out")
    with pytest.raises(BadSink, match=r"only column 'note' is left .*nulls would be lost"):
        FileSink(out, "csv", partition_by="day").check(nullable, QUERY)
    FileSink(out, "csv").check(nullable, QUERY)
    FileSink(out, "json", partition_by="day").check(nullable, QUERY)
    FileSink(out, "csv", "day", {"nullValue": "\\N"}).check(nullable, QUERY)
    never = pa.schema([nullable.field("day"), pa.field("note", pa.string(), nullable=False)])
    FileSink(out, "csv", partition_by="day").check(never, QUERY)


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"timestampFormat": "yyyy-MM-dd HH:mm:ssXXXXX"}, "microseconds"),
        ({"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"}, "the offset from UTC"),
        ({"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSSXXX"}, "the offset from UTC"),
        ({"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSSXXX", "timeZone": "UTC"}, ""),
        ({"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX"}, ""),
        ({"timestampNTZFormat": "yyyy-MM-dd'H'mm:ss.SSSSSS"}, "the hour"),
        ({"timestampNTZFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"}, ""),
        ({"dateFormat": "yy-MM-dd"}, "the whole year"),
        ({"dateFormat": "yyyy-MM"}, "the day"),
        ({"dateFormat": "dd.MM.yyyy"}, ""),
    ],
)
def test_formats_of_times_that_leave_something_out(
    tmp_path: Path, options: dict[str, Any], missing: str
) -> None:
    sink = FileSink(str(tmp_path / "out"), "json", options=options)
    if missing:
        with pytest.raises(BadSink, match=f"leaves out {missing}"):
            sink.check(TIMES, QUERY)
    else:
        sink.check(TIMES, QUERY)
    sink.check(TEXTS, QUERY)  # no dates, no harm
    FileSink(str(tmp_path / "out"), "parquet", options=options).check(TIMES, QUERY)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(pa.timestamp("us", "UTC"), "an hour that a clock goes through twice"), (pa.binary(), "hex")],
)
def test_columns_that_cannot_name_folders(tmp_path: Path, kind: Any, reason: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", kind)])
    with pytest.raises(BadSink, match=reason):
        FileSink(str(tmp_path / "out"), partition_by="x").check(schema, QUERY)


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
        (VARIANT, ("orc", "json", "csv")),
        (pa.map_(pa.int64(), pa.string()), ("json", "csv")),
        (pa.list_(pa.map_(pa.date32(), pa.string())), ("json", "csv")),
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
    assert read.rows_held is None
    newer = PendingFiles.from_json({**stored, "version": 2, "rows": 9})
    assert newer.rows_held == 9
    assert newer.is_same(read)


@pytest.mark.parametrize("name", ["", "`", "c`d"])
def test_names_that_orc_cannot_read_back(tmp_path: Path, name: str) -> None:
    odd = pa.struct([(name, pa.string())])
    for column in ((name, pa.string()), ("s", odd), ("m", pa.map_(pa.string(), pa.list_(odd)))):
        schema = pa.schema([("id", pa.int64()), column])
        FileSink(str(tmp_path / "out")).check(schema, QUERY)
        with pytest.raises(BadSink, match="orc cannot read back a name"):
            FileSink(str(tmp_path / "out"), "orc").check(schema, QUERY)
    schema = pa.schema([("id", pa.int64()), (name, pa.int64())])
    FileSink(str(tmp_path / "out"), "orc", partition_by=name).check(schema, QUERY)  # in no file


@pytest.mark.parametrize("name", ["a\0b", "x" * 229, "é" * 115, "/" * 77])
def test_columns_that_no_folder_can_be_named_after(tmp_path: Path, name: str) -> None:
    schema = pa.schema([("id", pa.int64()), (name, pa.int64())])
    with pytest.raises(BadSink, match="no folder can be named after"):
        FileSink(str(tmp_path / "out"), partition_by=name).check(schema, QUERY)
    schema = pa.schema([("id", pa.int64()), ("x" * 228, pa.int64())])
    FileSink(str(tmp_path / "out"), partition_by="x" * 228).check(schema, QUERY)
