"""``RedisSink``: rows as Redis commands, also those that are not idempotent, each once.

Redis cannot hold a prepared transaction, so parts are staged as files (``StagedSink``) and
written at commit, by a script that compares a ledger and counts the rows in the same atomic act.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from beadline.sink import (
    NOTHING_WRITTEN,
    BadSink,
    Capabilities,
    CommitBlocked,
    CommitFailed,
    Denied,
    Outcome,
    Part,
    QueryId,
    Rejected,
    Seen,
    StagedEpoch,
    StagedPart,
    StagedSink,
    Unavailable,
    WrongCheckpoint,
    check_writable,
    folders_in,
    local_folder,
    name_from,
    retry,
    running,
    starting,
    verdict,
    way_out,
)
from beadline.sinks.redis import ledger
from beadline.sinks.redis.acknowledged import NO_EPOCH, acknowledged, is_lost, loss, remember
from beadline.sinks.redis.client import RedisClient, RedisUrl, connect
from beadline.sinks.redis.columns import WITH_FIELDS, Layout, check_columns, check_layout
from beadline.sinks.redis.commit import Commit
from beadline.sinks.redis.ledger import Entry, Head
from beadline.sinks.redis.publish import publish
from beadline.sinks.redis.refused import without_refused
from beadline.sinks.redis.script import script_for
from beadline.sinks.redis.server import check_server, promise

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("beadline")

Command = Literal["SET", "HSET", "DEL", "INCRBY", "INCRBYFLOAT", "XADD", "LPUSH", "RPUSH"]
T = TypeVar("T")


@dataclass(frozen=True)
class RedisSink(StagedSink):
    """Rows as commands on the keys of a Redis server or cluster, one command per sink.

    ``key`` names the column that holds the key; ``prefix`` is put before it. ``LPUSH``, ``RPUSH``,
    ``XADD``, ``INCRBY`` and ``INCRBYFLOAT`` may go ``into`` one key instead. ``value`` names the
    column that ``SET``, ``INCRBY``, ``INCRBYFLOAT``, ``LPUSH`` and ``RPUSH`` take; ``HSET`` and
    ``XADD`` make fields of all other columns. A null field is removed by ``HSET`` and left out by
    ``XADD``. ``expire`` is a number of seconds, or a column with one for each row (null: none).
    ``deleted`` is a boolean column, for ``SET`` and ``HSET``: where it is true, the key is deleted.

    ``staging`` is a folder that driver and executors share, where parts wait for their commit.
    ``durable=True`` is your promise of what cannot be read from the server: that it syncs its log
    before it answers, and that no replica takes over. ``on_loss`` says what to do when the server
    has less than it acknowledged.

    >>> RedisSink("redis://localhost", "XADD", into="orders", staging="/shared").default_name
    'redis-orders-xadd'
    """

    url: str
    command: Command = "SET"
    key: str = "key"
    value: str = "value"
    into: str = ""
    prefix: str = ""
    expire: int | str | None = None
    deleted: str = ""
    staging: str | os.PathLike[str] = ""
    cluster: bool | None = None
    durable: bool = False
    on_loss: Literal["stop", "continue"] = "stop"
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        """Refuse invalid settings; make the folder absolute, as executors work in others."""
        RedisUrl.parse(self.url)
        object.__setattr__(self, "command", str(self.command).upper())
        check_layout(self._layout)
        if self.expire is not None and not isinstance(self.expire, str):
            object.__setattr__(self, "expire", int(self.expire))
        if self.on_loss not in ("stop", "continue") or not self.timeout_s > 0:
            raise BadSink(f"on_loss is 'stop' or 'continue', timeout_s above 0. {NOTHING_WRITTEN}")
        object.__setattr__(self, "staging", local_folder("staging", self.staging))

    @property
    def default_name(self) -> str:
        """Redis, what the keys have in common, and the command."""
        words = ("redis", (self.prefix + self.into).strip(":"), self.command.lower())
        return name_from(*filter(None, words))

    @property
    def _layout(self) -> Layout:
        return Layout(
            self.command,
            self.prefix,
            self.into,
            "" if self.into else self.key,
            self.value,
            self.expire,
            self.deleted,
        )

    @property
    def target_name(self) -> str:
        """The server, without its password, and what the keys have in common."""
        address = RedisUrl.parse(self.url)
        keys = f", keys {self.prefix + self.into!r}" if self.prefix or self.into else ""
        return f"Redis at {address.where}, database {address.database}{keys}"

    @property
    def _target(self) -> str:
        # Not by the server's address: a replica that takes over has another. That it is the same
        # data is told by what it holds, in ``last_seen`` and at commit.
        key = self.into or f"<{self.key}>"
        return f"redis:{RedisUrl.parse(self.url).database}#{self.command} {self.prefix}{key}"

    @property
    def staging_folder(self) -> str:
        """By the prefix, and not by the server's address, which a failover changes."""
        return str(Path(self.staging) / name_from(*filter(None, ("redis", self.prefix))))

    @property
    def staging_folders(self) -> Iterable[str]:
        """Those of other prefixes, in the same ``staging``."""
        return folders_in(f"file:{self.staging}", "redis")

    def staged_settings(self, schema: pa.Schema) -> Mapping[str, Any]:
        """What makes commands of rows."""
        return asdict(self._layout)

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Is it reachable, may we write, do the columns fit, and what can it lose?"""
        check_columns(self._layout, schema, self.target_name)
        check_writable("staging", os.fspath(self.staging), self.target_name)
        fields = self._layout.fields(schema.names)
        script = script_for(self._layout, fields)

        def ask(client: RedisClient) -> Capabilities:
            address = RedisUrl.parse(self.url)
            check_server(client, self.prefix, address.database, self.target_name)
            head = ledger.head_key(self.prefix, query.name)
            client.ask(lambda redis: redis.hgetall(head))
            client.ask(lambda _: [one.script_load(script.source) for one in client.servers()])
            found = promise(client, self.durable)
            return Capabilities(
                guarantee=found.guarantee,
                sentence=found.sentence,
                target=self._target,
                publishes=True,
                shared_disk=True,
                columns=None if self.command in WITH_FIELDS else self._layout.special,
                raised_by=found.raised_by,
                start_over="delete the keys that it wrote, and on every server those that match "
                f"{ledger.pattern(self.prefix, query.name)}",
            )

        return self._asked(ask, "checked")

    def _asked(self, question: Callable[[RedisClient], T], what: str) -> T:
        """Ask the server before anything is written, which an error says."""

        def once() -> T:
            with self._connect() as client:
                return question(client)

        # When it is opened or read, it was reachable at the start.
        limits = (starting if what == "checked" else running)(self.timeout_s)
        try:
            return retry(once, verdict, limits)
        except Rejected as error:
            raise BadSink(
                f"{self.target_name} refuses to be {what}: {error}. Check user, password and what "
                f"the user may do (docs/redis.md lists it). {NOTHING_WRITTEN}"
            ) from None
        except Unavailable as error:
            raise BadSink(
                f"{self.target_name} cannot be {what}: {error}. Check the address, or start again "
                f"when it is up. {NOTHING_WRITTEN}"
            ) from None

    def _connect(self) -> AbstractContextManager[RedisClient]:
        return connect(self.url, self.cluster, self.timeout_s)

    def open(self, query: QueryId, name: str) -> None:
        """Mark the server, and note that it was: another in its place is noticed from then on."""
        head = ledger.head_key(self.prefix, query.name)
        if self.on_loss == "continue":
            self._tell_loss(query, name, head)
        mark = (head, name + ledger.OPENED, query.incarnation)
        self._asked(lambda client: client.ask(lambda redis: redis.hset(*mark)), "opened")
        remember(self.staging_area.folder, query, name, NO_EPOCH)

    def _tell_loss(self, query: QueryId, name: str, head: bytes) -> None:
        """Say which epochs a server lacks that may lack some: the rows do not show it."""
        newest = acknowledged((self.staging_area.folder,), query, name)
        asked = (head, name)
        text = self._asked(lambda client: client.ask(lambda redis: redis.hget(*asked)), "opened")
        held = Entry.parse(text)
        if newest is None or newest < 0 or not is_lost(newest, held, opened=True):
            return
        first = 0 if held is None else held.epoch + held.complete
        logger.warning(
            "query %s, sink %s: %s has acknowledged epoch %s and now holds %s; on_loss='continue' "
            "continues without what it lacks of epochs %s to %s (but for one that is decided and "
            "not finished, which is written now)",
            *(query.name, name, self.target_name, newest),
            *("nothing" if held is None else f"epoch {held.epoch}", first, newest),
        )

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        """Stage the part; what Redis would never take is refused, while nothing is decided."""
        layout = self._layout
        return self.stage((without_refused(batch, layout, part) for batch in rows), part)

    def write_epoch(self, epoch: StagedEpoch) -> Outcome:
        """Write what the ledger does not count yet."""
        folder, stop = self.staging_area.folder, self.on_loss == "stop"
        commit = Commit(epoch, self._layout, folder, self.target_name, stop)
        try:
            with self._connect() as client:
                return commit.run(client)
        except Rejected as error:
            kind = CommitBlocked if isinstance(error, Denied) else CommitFailed
            end = f" {way_out(epoch.sink, epoch.id.number)}" if kind is CommitFailed else ""
            raise kind(
                f"{epoch}: {self.target_name} rejects the epoch: {error}. It is decided, and its "
                f"rows that took effect are counted; the next start finishes it.{end}"
            ) from None

    def after_commit(self, epoch: StagedEpoch) -> None:
        """Keep the epoch's number beside the staged parts, so that its loss would be noticed."""
        remember(self.staging_area.folder, epoch.id.query, epoch.sink, epoch.id.number)

    def publish(self, rows: Iterator[pa.RecordBatch], part: Part) -> None:
        """Write the rows at once; while Redis is away, wait, up to ``timeout_s``."""
        layout, first = self._layout, 0
        for batch in rows:
            taken = without_refused(batch, layout, part)
            if taken.num_rows:
                place = (part.id, first)
                publish(self._connect, layout, taken, *place, self.target_name, self.timeout_s)
            first += taken.num_rows

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Return what the ledger holds; another incarnation first. Raise if it holds too little."""
        key = ledger.head_key(self.prefix, query.name)
        # Read before the ledger: in between, another driver may advance both.
        newest = acknowledged((self.staging_area.folder,), query, name)
        texts = self._asked(lambda client: client.ask(lambda redis: redis.hgetall(key)), "asked")
        try:
            head = Head.parse(texts)
        except ValueError as error:
            raise BadSink(
                f"{self.target_name}, key {key.decode()!r}: {error}. {NOTHING_WRITTEN}"
            ) from None
        seen = head.rows(query).last_seen(name)
        if seen is not None and seen.incarnation != query.incarnation:
            return seen
        held = head.entries.get(name)
        opened = head.opened.get(name) == query.incarnation
        if self.on_loss == "stop" and is_lost(newest, held, opened):
            text = loss(self.target_name, newest, held)
            raise WrongCheckpoint(f"query {query.name!r}: {text} {NOTHING_WRITTEN}")
        return seen
