"""What a person can correct is told from what is wrong with an epoch, by every sink.

Errors as the client libraries raise them, in the place of a server that refuses this user: over the
first kind ``drop=["name"]`` gives up nothing, so taking one for the other loses rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import CommitBlocked, CommitFailed
from beadline.sink import Part, Prepared
from beadline.sinks import HBaseSink, MySqlSink, PostgresSink, RedisSink, SqliteSink
from beadline.sinks.mysql.part import MySqlPart
from beadline.sinks.postgres.part import STAGED, PostgresPart
from beadline.testing.suite.target import QUERY, SINK_NAME, epoch_id, part_id

happybase = pytest.importorskip("happybase")
psycopg = pytest.importorskip("psycopg")
pymysql = pytest.importorskip("pymysql")
redis = pytest.importorskip("redis")
HBASE = pytest.importorskip("Hbase_thrift")  # which happybase makes

ROWS = pa.RecordBatch.from_pydict({"key": ["a", "b"], "value": ["1", "2"]})
FAILED = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: FATAL:  '


def refuses(error: Exception) -> Callable[..., Any]:
    """Return a function that a server which answers so would be called by."""

    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def commit(sink: Any, committable: Any = None) -> type[CommitFailed]:
    """Commit two rows, and return what kind of error that is."""
    held = sink.prepare(iter([ROWS]), Part(part_id(3))) if committable is None else committable
    with pytest.raises(CommitFailed) as told:
        sink.commit(epoch_id(3), [Prepared(part_id(3), 2, held)])
    assert "decided" in str(told.value)
    # Once: the start that is to give rows up in spite of a block adds it itself.
    ways_out = str(told.value).count(f'drop=["{SINK_NAME}@3"]')
    assert ways_out == (told.type is CommitFailed)
    return told.type


@pytest.mark.parametrize(
    ("error", "blocked"),
    [
        (psycopg.OperationalError(f'{FAILED}password authentication failed for "me"'), True),
        (psycopg.errors.InsufficientPrivilege(), True),
        (psycopg.errors.InvalidPassword(), True),
        (psycopg.errors.OutOfMemory(), True),
        (psycopg.errors.QueryCanceled(), True),
        (psycopg.errors.UndefinedTable(), False),
        (psycopg.errors.CheckViolation(), False),
    ],
)
def test_postgres(error: Exception, blocked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg, "connect", refuses(error))
    sink = PostgresSink("postgresql://me:secret@127.0.0.1/blocked", "orders")
    told = commit(sink, PostgresPart(STAGED, "public", "_beadline_stage_x"))
    assert told is (CommitBlocked if blocked else CommitFailed)


@pytest.mark.parametrize(
    ("code", "blocked"),
    [
        *[(code, True) for code in (1045, 1044, 1142, 1226, 1114)],
        *[(code, True) for code in (1290, 1836)],  # read-only, and not for a moment
        *[(code, False) for code in (1146, 1054)],
    ],
)
def test_mysql(code: int, blocked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    error = pymysql.err.OperationalError(code, "no")
    monkeypatch.setattr(pymysql.connections.Connection, "connect", refuses(error))
    sink = MySqlSink("mysql://me:secret@127.0.0.1/shop", "orders", timeout_s=0.2)
    told = commit(sink, MySqlPart("staged", "_beadline_stage_x", 2))
    assert told is (CommitBlocked if blocked else CommitFailed)


@pytest.mark.parametrize(
    ("error", "blocked"),
    [
        (redis.exceptions.AuthenticationError("invalid username-password pair"), True),
        (redis.exceptions.NoPermissionError("this user has no permissions"), True),
        (redis.exceptions.ResponseError("The user executing the script can't run this"), True),
        (redis.exceptions.ResponseError("unknown command 'EVALSHA'"), False),
    ],
)
def test_redis(
    error: Exception, blocked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis.Redis, "execute_command", refuses(error))
    sink = RedisSink("redis://:secret@127.0.0.1/0", staging=tmp_path)
    assert commit(sink) is (CommitBlocked if blocked else CommitFailed)


class Thrift:
    """A Thrift server of HBase, with empty tables, that answers one call with an error."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.client = self

    getColumnDescriptors = staticmethod(lambda _: {b"f:": None})  # noqa: N815 (HBase's names)
    isTableEnabled = staticmethod(lambda _: True)  # noqa: N815
    scannerOpenWithPrefix = staticmethod(lambda *_: 0)  # noqa: N815
    scannerGetList = getRow = staticmethod(lambda *_: [])  # noqa: N815
    scannerClose = staticmethod(lambda _: None)  # noqa: N815
    mutateRowsTs = staticmethod(lambda *_: None)  # noqa: N815


@pytest.mark.parametrize("call", ["scannerOpenWithPrefix", "getRow", "mutateRowsTs"])
@pytest.mark.parametrize(
    ("says", "blocked"), [("AccessDeniedException", True), ("NoSuchColumnFamilyException", False)]
)
def test_hbase(
    call: str, says: str, blocked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = HBASE.IOError(message=f"org.apache.hadoop.hbase.{says}: no".encode())
    server = type("Refusing", (Thrift,), {call: staticmethod(refuses(error))})
    monkeypatch.setattr(happybase, "Connection", server)
    sink = HBaseSink("h", table="orders", row_key="key", family="f", staging=tmp_path)
    assert commit(sink) is (CommitBlocked if blocked else CommitFailed)


def test_the_error_of_a_row_that_hbase_rejects_has_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last row that has the key, over all batches; the key itself may be secret."""

    def mutate(_table: bytes, rows: list[Any], *_: Any) -> None:
        if any(row.row == b"4111" for row in rows):
            raise HBASE.IOError(message=b"NoSuchColumnFamilyException: no")

    server = type("Refusing", (Thrift,), {"mutateRowsTs": staticmethod(mutate)})
    monkeypatch.setattr(happybase, "Connection", server)
    sink = HBaseSink("h", table="orders", row_key="key", family="f", staging=tmp_path)
    keys = [["a", "4111"], ["4111", "b"]]
    batches = [pa.RecordBatch.from_pydict({"key": some, "value": ["1", "2"]}) for some in keys]
    held = sink.prepare(iter(batches), Part(part_id(3)))
    assert held is not None
    with pytest.raises(CommitFailed, match=r"rejects row 2 of part 0 \(the first is 0") as told:
        sink.commit(epoch_id(3), [Prepared(part_id(3), 4, held)])
    assert "4111" not in str(told.value)


def test_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "shop" / "orders.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE orders (key, value)")
    sink = SqliteSink(path, "orders")
    sink.open(QUERY, SINK_NAME)
    held = sink.prepare(iter([ROWS]), Part(part_id(3)))
    assert held is not None
    path.rename(tmp_path / "orders.db")
    path.mkdir()
    assert commit(sink, held) is CommitBlocked
    path.rmdir()
    (tmp_path / "orders.db").rename(path)
    sink.commit(epoch_id(3), [Prepared(part_id(3), 2, held)])
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT COUNT(*) FROM orders").fetchone() == (2,)
