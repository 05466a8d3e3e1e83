"""Every value comes back from every format, or is refused before anything is decided (rule 26).

Spark's own defaults lose values in csv and json. Random values of every type, and those that are
known to be troublesome, are written by ``FileSink`` and read back by Spark with ``read_options``.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from beadline.errors import BadSetting, BadSink, RowsRefused
from beadline.ids import EpochId, PartId, QueryId
from beadline.sink import Part, Prepared
from beadline.sinks import FileSink
from beadline.sinks.files import rows as file_rows
from beadline.spark.checks import to_arrow
from tests.spark.jobs import session_conf
from tests.spark.random_rows import TEXTS, random_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = QueryId("orders", "a" * 32, "file:/nowhere/checkpoint")
DAY = 86_400_000_000  # in microseconds
FORMATS = ("parquet", "orc", "json", "csv")


def written(sink: FileSink, frame: DataFrame, number: int = 0) -> int:
    """Check, prepare and commit; return the rows that were counted in the files."""
    sink.check(to_arrow(frame), QUERY)
    part = Part(PartId(QUERY.name, QUERY.incarnation, "out", 1, number, 0, 0))
    committable = sink.prepare(frame, part)
    assert committable is not None
    held = committable.rows_held
    assert held is not None
    sink.commit(EpochId(QUERY, number, "nonce", 1), [Prepared(part.id, held, committable)])
    return held


def back(spark: SparkSession, sink: FileSink, frame: DataFrame) -> DataFrame:
    reader = spark.read.schema(frame.schema).options(**sink.read_options)
    return reader.format(sink.format).load(sink.path)


def rows_of(frame: DataFrame) -> Counter[str]:
    """Rows that can be compared: NaN equals itself in text, and a moment is a number."""
    moments = [n for n, kind in frame.dtypes if kind == "timestamp"]
    plain = [f"unix_micros({n}) AS {n}" if n in moments else f"`{n}`" for n in frame.columns]
    return Counter(repr(_ordered(row.asDict(True))) for row in frame.selectExpr(*plain).collect())


def _ordered(value: Any) -> Any:
    """A map has no order, and orc's reader gives it another one."""
    if isinstance(value, dict):
        return [(key, _ordered(value[key])) for key in sorted(value)]
    return value


@pytest.fixture(params=["UTC", "Europe/Berlin"])
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Until 1893 Berlin was 53 minutes and 28 seconds ahead; and some hours come twice there."""
    with session_conf(spark, {"spark.sql.session.timeZone": request.param}):
        yield request.param


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("format_", "options"),
    [
        ("parquet", {}),
        ("orc", {}),
        ("json", {}),
        ("json", {"ignoreNullFields": False, "compression": "gzip"}),
        ("csv", {}),
        ("csv", {"header": True, "sep": "\t", "quote": "'", "compression": "bzip2"}),
        ("csv", {"escape": "\\"}),
        ("csv", {"nullValue": "<null>", "quoteAll": True, "timeZone": "America/New_York"}),
    ],
)
def test_random_values_come_back(
    spark: SparkSession,
    zone: str,
    tmp_path: Path,
    rng: random.Random,
    format_: str,
    options: dict[str, object],
) -> None:
    frame = random_frame(spark, rng, nested=format_ != "csv", rows=300)
    sink = FileSink(tmp_path / "out", format_, options=options)  # type: ignore[arg-type]
    assert written(sink, frame) == 300
    found, wanted = rows_of(back(spark, sink, frame)), rows_of(frame)
    assert found == wanted, f"lost {[*(wanted - found)][:2]}, got {[*(found - wanted)][:2]}"


@pytest.mark.parametrize("format_", FORMATS)
def test_nulls_of_the_only_column(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    """Spark's csv writer leaves out a line that would be empty."""
    frame = spark.createDataFrame([("x",), (None,), ("",), (None,)], "note: string")
    options = {"nullValue": "\\N"} if format_ == "csv" else {}
    sink = FileSink(str(tmp_path / "out"), format_, options=options)
    assert written(sink, frame) == 4
    assert rows_of(back(spark, sink, frame)) == rows_of(frame)


def test_lines_that_the_writer_leaves_out_are_noticed(spark: SparkSession, tmp_path: Path) -> None:
    """Without the refusal at check: the rows in the files are counted, not those that passed."""
    frame = spark.createDataFrame([("x\ny",), (None,), ("",), (None,)], "note: string").coalesce(1)
    for header in (False, True):
        sink = FileSink(str(tmp_path / "out"), "csv", options={"header": header})
        found = sink.prepare(frame, Part(PartId("orders", "a" * 32, "out", 1, 0, 0, 0)))
        assert found is not None
        assert found.rows_held == 2
        nothing = sink.prepare(
            frame.where("note IS NULL"), Part(PartId("orders", "a" * 32, "out", 1, 1, 0, 0))
        )
        assert nothing is None


@pytest.mark.parametrize("format_", FORMATS)
def test_rows_are_counted_by_a_job_where_the_driver_should_not(
    spark: SparkSession, tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_rows, "_on_driver", lambda *_: False)
    frame = spark.createDataFrame(
        [(n, "a\nb", n % 3) for n in range(30)], "id int, s string, k int"
    )
    options = {"header": True} if format_ == "csv" else {}
    folder = tmp_path / "out {a,b} [1]*?"
    sink = FileSink(str(folder), format_, partition_by="k", options=options)
    assert written(sink, frame.coalesce(2)) == 30
    flat = FileSink(str(tmp_path / "flat"), format_, options=options)
    assert written(flat, spark.range(0, 10, 1, 2).selectExpr("id", "id AS x").where("id = 9")) == 1
    assert len([*(tmp_path / "flat").glob("orders-*")]) == 1, "the first task's file without rows"
    empty = sink.prepare(
        frame.where("id > 100"), Part(PartId("orders", "a" * 32, "out", 1, 1, 0, 0))
    )
    assert empty is None


def test_the_last_second_before_1970(spark: SparkSession, tmp_path: Path) -> None:
    """Orc's library writes it a second later: refused there, kept by the others."""
    micros = [-2_000_001, -1_999_999, -1_000_001, -1_000_000, 0, 1]
    bad = [-999_999, -999_000, -500_000, -1_001, -999, -1]
    for format_ in FORMATS:
        sink = FileSink(str(tmp_path / format_), format_)
        kept = micros if format_ == "orc" else [*micros, *bad]
        frame = spark.createDataFrame([(n,) for n in kept], "n long")
        frame = frame.selectExpr("n", "timestamp_micros(n) AS t").coalesce(1)
        written(sink, frame)
        assert rows_of(back(spark, sink, frame)) == rows_of(frame)
    sink = FileSink(str(tmp_path / "orc"), "orc")
    rows = spark.createDataFrame([(n,) for n in bad], "n long").selectExpr(
        "array(named_struct('t', timestamp_micros(n))) AS a"
    )
    with pytest.raises(RowsRefused, match=rf"{len(bad)} row\(s\).*last second before 1970"):
        written(sink, rows, 1)


def test_the_days_that_orc_has_not(spark: SparkSession, tmp_path: Path) -> None:
    """5 to 14 October 1582. Times are moved by the zone of a JVM: refused with a day around."""
    gap = range(-141_437, -141_427)
    days = [-700_000, gap[0] - 1, gap[-1] + 1, 0]
    moments = [(gap[0] - 1) * DAY - 1, (gap[-1] + 2) * DAY]
    frames = {
        ("date_from_unix_date(cast(n AS int))"): (days, [*gap]),
        ("timestamp_micros(n)"): (moments, [moments[0] + 1, gap[0] * DAY, moments[1] - 1]),
    }
    for number, (value, (kept, bad)) in enumerate(frames.items()):
        for format_ in FORMATS:
            sink = FileSink(str(tmp_path / f"{format_}{number}"), format_)
            ns = kept if format_ == "orc" else [*kept, *bad]
            frame = spark.createDataFrame([(n,) for n in ns], "n long").coalesce(1)
            frame = frame.selectExpr("n", f"{value} AS v")
            written(sink, frame)
            assert rows_of(back(spark, sink, frame)) == rows_of(frame)
        rows = spark.createDataFrame([(n,) for n in bad], "n long")
        for shape in (value, f"array({value})", f"named_struct('m', map('k', {value}))"):
            sink = FileSink(str(tmp_path / f"orc{number}"), "orc")
            with pytest.raises(RowsRefused, match=rf"{len(bad)} row\(s\).*'v'.*October 1582"):
                written(sink, rows.selectExpr("1 AS id", f"{shape} AS v"), 1)


def test_a_column_called_as_the_readers_own(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, "x"), (2, None)], "id int, _corrupt_record string")
    for format_ in FORMATS:
        sink = FileSink(str(tmp_path / format_), format_)
        assert written(sink, frame) == 2
        assert rows_of(back(spark, sink, frame)) == rows_of(frame)


def test_collated_text(spark: SparkSession, tmp_path: Path) -> None:
    """Orc's files of it cannot be read; Arrow's schema does not know, so it is told at prepare."""
    text = "'a' COLLATE UTF8_LCASE"
    for number, shape in enumerate((text, f"array(named_struct('t', {text}))")):
        frame = spark.sql(f"SELECT 1 AS id, {shape} AS v")
        with pytest.raises(BadSink, match="'v' is, or holds, a collated string"):
            written(FileSink(str(tmp_path / f"orc{number}"), "orc"), frame)
        sink = FileSink(str(tmp_path / f"parquet{number}"))
        written(sink, frame)
        assert rows_of(back(spark, sink, frame)) == rows_of(frame)


def test_every_short_text_comes_back_from_csv(spark: SparkSession, tmp_path: Path) -> None:
    """All texts of up to four of the characters that csv has something to do with."""
    letters = ['"', "\0", "a", "\n", "\r", " ", ",", "\\"]
    texts = ["".join(some) for n in range(5) for some in itertools.product(letters, repeat=n)]
    frame = spark.createDataFrame([*enumerate([*texts, None])], "id int, s string").coalesce(1)
    for number, options in enumerate([{}, {"escape": "\\"}]):
        sink = FileSink(str(tmp_path / str(number)), "csv", options=options)
        assert written(sink, frame) == len(texts) + 1
        assert rows_of(back(spark, sink, frame)) == rows_of(frame)


def test_text_that_is_not_utf8(spark: SparkSession, tmp_path: Path) -> None:
    """Binary formats keep the bytes; text formats would write other ones, however deep they are."""
    bad = "cast(X'636166e9' AS string)"
    shapes = [bad, f"array('a', {bad})", f"named_struct('a', map('k', {bad}))", f"map({bad}, 1)"]
    for number, shape in enumerate(shapes):
        frame = spark.sql(f"SELECT 1 AS id, {shape} AS v UNION ALL SELECT 2, null")
        for format_ in FORMATS:
            if format_ == "csv" and number:
                continue
            sink = FileSink(str(tmp_path / f"{format_}{number}"), format_)
            if format_ in ("parquet", "orc"):
                assert written(sink, frame) == 2
                continue
            with pytest.raises(
                RowsRefused, match=r"1 row\(s\).*column 'v' holds bytes that are not"
            ):
                written(sink, frame)
            assert list(sink.in_doubt(QUERY, "out")) == []


def test_values_that_stand_for_null(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, "\\N"), (2, None)], "id int, s string")
    sink = FileSink(str(tmp_path / "out"), "csv", options={"nullValue": "\\N"})
    with pytest.raises(RowsRefused, match="which option nullValue says is null"):
        written(sink, frame)


def test_partition_columns(spark: SparkSession, tmp_path: Path) -> None:
    """A folder's name keeps every text but the empty one, which would come back as null."""
    texts = [text for text in TEXTS if text and "\0" not in text] + ["a=b", "%41", "a/b", ".", "_x"]
    texts += ["__HIVE_DEFAULT", "a:b", "*"]
    frame = spark.createDataFrame(list(enumerate([*texts, None])), "id int, k string").coalesce(1)
    sink = FileSink(str(tmp_path / "out"), partition_by="k")
    assert written(sink, frame) == len(texts) + 1
    assert rows_of(back(spark, sink, frame)) == rows_of(frame)
    for bad in ("", "__HIVE_DEFAULT_PARTITION__"):
        rows = spark.createDataFrame([(1, bad)], "id int, k string")
        with pytest.raises(RowsRefused, match="column 'k' holds"):
            written(sink, rows, 1)


def test_text_that_no_folder_can_be_named_after(spark: SparkSession, tmp_path: Path) -> None:
    """255 bytes are a name's end on disks, after Spark's escapes; and there is no NUL in one."""
    name = "a.`b`"
    room = 255 - len(f"{name}=")
    texts = ["x" * room, "é" * (room // 2), "/" * (room // 3)]
    kind = f"id int, `{name.replace('`', '``')}` string"
    frame = spark.createDataFrame(list(enumerate([*texts, None])), kind).coalesce(1)
    sink = FileSink(str(tmp_path / "out"), "json", partition_by=name)
    assert written(sink, frame) == len(texts) + 1
    found = back(spark, sink, frame).select("id", f"`{name.replace('`', '``')}`")
    assert sorted(found.collect()) == sorted(frame.collect())
    for number, text in enumerate(texts, 1):
        rows = spark.createDataFrame([(1, "a"), (2, text + text[0])], kind)
        with pytest.raises(RowsRefused, match=r"1 row\(s\).*holds text too long to name a folder"):
            written(sink, rows, number)
    rows = spark.createDataFrame([(1, "a\0b"), (2, "a"), (3, "\0")], kind)
    with pytest.raises(RowsRefused, match=r"2 row\(s\).*holds a NUL"):
        written(sink, rows, 9)
    assert list(sink.in_doubt(QUERY, "out")) == []


@pytest.mark.parametrize(
    ("format_", "key", "value"),
    [
        ("parquet", "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS"),
        ("json", "spark.sql.legacy.timeParserPolicy", "LEGACY"),
        ("csv", "spark.sql.legacy.nullValueWrittenAsQuotedEmptyStringCsv", "true"),
    ],
)
def test_settings_of_a_session_that_change_values(
    spark: SparkSession, tmp_path: Path, format_: str, key: str, value: str
) -> None:
    frame = spark.createDataFrame([(1, "a")], "id int, s string")
    refused = pytest.raises(BadSetting, match=f"{key} is {value}")
    with session_conf(spark, {key: value}), refused:
        written(FileSink(str(tmp_path / "out"), format_), frame)
