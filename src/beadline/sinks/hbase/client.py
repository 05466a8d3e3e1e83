"""The few calls that are made to HBase's Thrift server, and what its errors mean.

Two kinds of error leave this module, and no others. ``Unavailable``: there was no answer, or HBase
has no server for the rows just now; the same call may work later, and may have been done.
``Rejected``: HBase answered, and would answer the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from beadline.sink import Denied, Rejected, Unavailable, Verdict, require, retry, verdict

T = TypeVar("T")

# HBase wraps one error into another, and the one that says why may be any of them.
_FINAL = (
    "TableNotFoundException",
    "NamespaceNotFoundException",
    "NoSuchColumnFamilyException",
    "TableNotEnabledException",
    "FailedSanityCheckException",
    "exceeds limit of",  # a cell; HBase has no name of its own for that
)
_DENIED = "AccessDeniedException"
_NO_TABLE = ("TableNotFoundException", "NamespaceNotFoundException")
_SCAN_ROWS = 100


def no_table(error: Rejected) -> bool:
    """Whether the reason is that there is no such table."""
    return any(name in str(error) for name in _NO_TABLE)


@dataclass(frozen=True)
class ThriftServer:
    """Where the Thrift server is, and how long an answer may take."""

    host: str
    port: int
    timeout_s: float

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class HBaseClient:
    """One connection. Not for two threads at once."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._calls = connection.client

    def families(self, table: str) -> dict[str, Any]:
        """Return the table's column families by name; ``Rejected`` if there is no such table."""
        found = _ask(self._calls.getColumnDescriptors, table.encode())
        return {name.decode().rstrip(":"): descriptor for name, descriptor in found.items()}

    def is_enabled(self, table: str) -> bool:
        """Whether the table takes reads and writes."""
        return bool(_ask(self._calls.isTableEnabled, table.encode()))

    def create(self, table: str, family: str) -> None:
        """Make a table that keeps one version of each cell; fine if it is there."""
        columns = [_thrift().ColumnDescriptor(name=f"{family}:".encode(), maxVersions=1)]
        try:
            with suppress(_thrift().AlreadyExists):
                _ask(self._calls.createTable, table.encode(), columns)
        except (Rejected, Unavailable) as error:
            if "TableExistsException" not in str(error):  # another process was making it
                raise

    def mutate(self, table: str, rows: Sequence[Any], at_ms: int) -> None:
        """Put and delete cells of many rows under one time; some may be done when it fails."""
        _ask(self._calls.mutateRowsTs, table.encode(), rows, at_ms, {})

    def row(self, table: str, key: bytes) -> dict[bytes, bytes]:
        """Return the newest version of every cell of a row; empty if there is none."""
        found = _ask(self._calls.getRow, table.encode(), key, {})
        return {name: cell.value for row in found for name, cell in row.columns.items()}

    def rows(self, table: str, prefix: bytes) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Return the rows whose key begins with ``prefix``."""
        rows: list[Any] = []
        scanner = _ask(self._calls.scannerOpenWithPrefix, table.encode(), prefix, [], {})
        while found := _ask(self._calls.scannerGetList, scanner, _SCAN_ROWS):
            rows += found
        # Not after an error, as the connection is lost; the server closes it by itself.
        _ask(self._calls.scannerClose, scanner)
        return [(row.row, {name: cell.value for name, cell in row.columns.items()}) for row in rows]

    def cluster_id(self) -> str | None:
        """Return HBase's own id of the cluster; None if the Thrift server is too old to say."""
        from thriftpy2.thrift import TApplicationException, TClient

        asking = TClient(_service_with_cluster_id(), self._calls._iprot)
        try:
            return str(_ask(asking.getClusterId).decode())
        except Rejected as error:
            if isinstance(error.__cause__, TApplicationException):
                return None
            raise


@contextmanager
def connected(server: ThriftServer) -> Iterator[HBaseClient]:
    """A connection for the length of a ``with``; raises ``Unavailable`` if there is none."""
    require("hbase")
    from happybase import Connection

    timeout_ms = max(1, int(server.timeout_s * 1000))
    connection = _ask(Connection, server.host, server.port, timeout=timeout_ms)
    try:
        yield HBaseClient(connection)
    finally:
        with suppress(Exception):  # it is not needed any more, whatever became of it
            connection.close()


def asked(
    server: ThriftServer, act: Callable[[HBaseClient], T], limits: Mapping[Verdict, float]
) -> T:
    """Run what is idempotent, each time on a new connection, until HBase answers."""

    def once() -> T:
        with connected(server) as client:
            return act(client)

    return retry(once, verdict, limits)


@cache
def _thrift() -> Any:
    """HBase's own types, a module that happybase makes when it is imported."""
    import_module("happybase")
    return import_module("Hbase_thrift")


def put(column: bytes, value: bytes) -> Any:
    """Return the mutation that writes a cell."""
    return _thrift().Mutation(isDelete=False, column=column, value=value, writeToWAL=True)


def delete(column: bytes) -> Any:
    """Return the mutation that deletes a cell, ``family:qualifier``, or all of a ``family``.

    With a colon and nothing after it, HBase would delete the one cell that has no qualifier.
    """
    return _thrift().Mutation(isDelete=True, column=column, value=None, writeToWAL=True)


def row_of(key: bytes, mutations: Sequence[Any]) -> Any:
    """Return mutations of one row, as ``mutate`` takes them."""
    return _thrift().BatchMutation(key, list(mutations))


def _ask(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    from thriftpy2.thrift import TApplicationException, TException

    try:
        return call(*arguments, **named)
    except _thrift().AlreadyExists:
        raise
    except _thrift().IOError as error:
        if _DENIED in _text(error):
            raise Denied(_first_line(error)) from error
        if any(name in _text(error) for name in _FINAL):
            raise Rejected(_first_line(error)) from error
        raise Unavailable(_first_line(error), answered=True) from error
    except _thrift().IllegalArgument as error:
        raise Rejected(_first_line(error)) from error
    except TApplicationException as error:
        # Any unforeseen error in the server is "internal", transient ones too.
        internal = error.type == TApplicationException.INTERNAL_ERROR
        raise (Unavailable if internal else Rejected)(_first_line(error)) from error
    except TimeoutError as error:
        raise Unavailable("no answer in time") from error
    except (TException, OSError, EOFError) as error:
        raise Unavailable(_first_line(error) or type(error).__name__) from error


def _text(error: Any) -> str:
    message = getattr(error, "message", None)
    if isinstance(message, bytes):
        return message.decode(errors="replace")
    return str(message or error)


def _first_line(error: Any) -> str:
    """The first line, for people: from the second on it is Java's stack trace."""
    text = _text(error)
    lines = text.splitlines() or [""]
    reason = next((name for name in _FINAL if name in text and name not in lines[0]), "")
    return f"{lines[0][:500].strip()} {f'({reason})' if reason else ''}".strip()


def _service_with_cluster_id() -> Any:
    """The one call that happybase's copy of HBase's interface is too old to have."""
    from thriftpy2.thrift import TPayload, TType

    class Arguments(TPayload):
        thrift_spec: ClassVar[dict[int, Any]] = {}
        default_spec: ClassVar[list[Any]] = []

    class Result(TPayload):
        thrift_spec: ClassVar[dict[int, Any]] = {0: (TType.STRING, "success", False)}
        default_spec: ClassVar[list[Any]] = [("success", None)]
        oneway = False

    class Service:
        thrift_services = ("getClusterId",)
        getClusterId_args = Arguments  # noqa: N815 (found by this name)
        getClusterId_result = Result  # noqa: N815 (found by this name)

    return Service
