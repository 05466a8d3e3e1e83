"""``StagedSink``: for systems that cannot hold a prepared transaction.

At prepare the rows of a part become one Arrow file in a staging folder: durable, and invisible to
readers. At commit the sink writes them to the outside system together with its ledger row, and the
files are discarded. A file's name is the part's id, so that after a crash leftovers are known
from other files::

    <folder>/<part id>.tmp-1f00c0de   being written; if a crash leaves it, it is swept as in doubt
    <folder>/<part id>                prepared: complete, fsynced, and its name too

Staging folders must be on a local disk for now: driver and executors must see the same disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from beadline.committable import Committable
from beadline.errors import BadSink, CommitFailed
from beadline.files import join, open_files, split_uri
from beadline.files.base import TEMPORARY
from beadline.files.local import LocalFiles, local_path
from beadline.ids import EpochId, PartId, QueryId
from beadline.points import reach
from beadline.shared.retry import Unavailable
from beadline.sink.interface import CommitResult, Outcome, Part, Prepared, Seen, Sink
from beadline.sink.ledger import holds, way_out
from beadline.sink.refused import without_unreadable

if TYPE_CHECKING:
    import pyarrow as pa

_TEMPORARY = ".tmp-"
_BUFFER_BYTES = 1 << 20
_OLD_S = 3600.0
_SETTINGS = b"beadline.settings"


class PartsDamaged(Exception):
    """Staged parts are missing or damaged; the message says which, and what is wrong."""


class OutcomeUnknown(Exception):
    """Raised in ``write_epoch``: the outcome is not known. The commit is retried."""


@dataclass(frozen=True)
class StagedPart(Committable):
    """One Arrow file: where it is, and the size and hash that it must have when it is read."""

    file: str
    rows: int
    size_bytes: int
    sha256: str

    @property
    def rows_held(self) -> int | None:
        """The rows in the file."""
        return self.rows


@dataclass(frozen=True)
class Staging:
    """A folder of staged parts, named by a qualified URI."""

    folder: str

    def __post_init__(self) -> None:
        """Refuse a folder that is not local."""
        if split_uri(self.folder)[0] != "file":
            raise BadSink(
                f"staging folder {self.folder} is not on a local disk, the only kind that staging "
                "supports so far. Give a folder that driver and executors share. Nothing was "
                "written."
            )

    def write(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        """Stage a part, batch by batch; ``None`` if there are no rows.

        After an error the temporary file is deleted. A crash leaves it behind: it is then in doubt.
        """
        filled = (batch for batch in rows if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return None
        files = open_files(self.folder)
        files.make_folder(self.folder)
        final = join(self.folder, str(part.id))
        temporary = f"{final}{_TEMPORARY}{uuid.uuid4().hex[:8]}"
        try:
            staged = _write(temporary, final, first.schema, chain((first,), filled))
            if not files.rename(temporary, final):
                raise FileExistsError(
                    f"part {part.id} was swept while it was being written, or is already staged: "
                    "this attempt must not continue"
                )
        except Exception:
            files.delete(temporary)
            raise
        files.sync_folder(self.folder)
        return staged

    def damage(self, parts: Sequence[Prepared[StagedPart]]) -> dict[PartId, str]:
        """Return the parts that are missing or damaged, each with what is wrong."""
        found = {part.id: _damage(part.committable) for part in parts}
        return {id_: what for id_, what in found.items() if what}

    def read(self, part: StagedPart) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a part that ``damage`` found intact."""
        with _opened(part) as reader:
            yield from reader

    def schema(self, part: StagedPart) -> pa.Schema:
        """Return the schema of a staged part, with the settings stored in its metadata."""
        with _opened(part) as reader:
            return reader.schema

    def in_doubt(
        self, query: QueryId, beside: Iterable[str] = ()
    ) -> Iterable[Prepared[StagedPart]]:
        """Yield the parts of this query here, half-written ones too, with enough to abort them.

        ``beside`` are folders in which sinks that were removed may have left parts.
        """
        for folder in dict.fromkeys((self.folder, *beside)):
            files = open_files(folder)
            list_ = files.names if folder == self.folder else files.names_beside
            ids = {_id_of(name) for name in list_(folder)}
            for id_ in ids:
                if id_ is not None and id_.belongs_to(query):
                    yield Prepared(id_, 0, StagedPart(join(folder, str(id_)), 0, 0, ""))

    def discard(self, parts: Sequence[Prepared[StagedPart]]) -> None:
        """Delete every file named by the ids of these parts, and nothing else."""
        files = open_files(self.folder)
        ids = {part.id for part in parts}
        folders = (part.committable.file.rpartition("/")[0] for part in parts)
        for folder in dict.fromkeys((self.folder, *folders)):
            for name in files.names(folder):
                if _id_of(name) in ids:
                    files.delete(join(folder, name))

    def pattern(self, query: QueryId) -> str:
        """Return, for people, a pattern of this query's files, under any of its checkpoints."""
        return f"{local_path(self.folder)}/beadline~{query.name}~*"


class StagedEpoch:
    """A decided epoch of one sink at its commit: the rows to write, and the checks before it."""

    def __init__(
        self, sink: StagedSink, epoch: EpochId, parts: Sequence[Prepared[StagedPart]]
    ) -> None:
        """``parts`` are put into the order in which their rows take effect."""
        self.id = epoch
        self.parts = sorted(parts, key=lambda part: part.id.partition)
        self._sink = sink

    @property
    def sink(self) -> str:
        """The sink's name in the query."""
        return self.parts[0].id.sink

    @property
    def rows(self) -> int:
        """How many rows the epoch has."""
        return sum(part.committable.rows for part in self.parts)

    def __str__(self) -> str:
        """Return the text with which errors begin."""
        return f"query {self.id.query.name!r}, epoch {self.id.number}, sink {self.sink!r}"

    def is_committed(self, seen: Seen | None) -> bool:
        """Whether the target holds this epoch according to its ledger; call it before you write.

        It raises if the ledger belongs to a query with another checkpoint, or lacks an epoch that
        the target had acknowledged.
        """
        return holds(seen, self.id, self._sink.target_name)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all parts, in order, after ``check_parts``."""
        self.check_parts()
        for part in self.parts:
            yield from self.read(part)

    def read(self, part: Prepared[StagedPart]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part that ``check_parts`` has found intact."""
        return self._sink.staging_area.read(part.committable)

    def check_parts(self, parts: Sequence[Prepared[StagedPart]] | None = None) -> None:
        """Raise unless the parts (all by default) are intact and the settings are unchanged.

        Do not catch ``PartsDamaged``: the base class retries the write once, as another process may
        have finished the epoch meanwhile, and then reports all parts as lost.
        """
        parts = self.parts if parts is None else parts
        damage = self.damage(parts)
        if damage:
            raise PartsDamaged("; ".join(damage.values()))
        sink = self._sink
        for part in parts:
            schema = sink.staging_area.schema(part.committable)
            before, now = settings_in(schema), sink.staged_settings(schema)
            check_settings(part.id, sink.target_name, before, now)

    def damage(self, parts: Sequence[Prepared[StagedPart]]) -> dict[PartId, str]:
        """Return which of these parts are missing or damaged, and what is wrong.

        For a sink that can continue an epoch that is partly written; others use ``check_parts``.
        """
        return self._sink.staging_area.damage(parts)


def check_settings(
    id_: PartId, target: str, before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Raise if a part was staged under other settings than its sink has now, as JSON values.

    Its rows would be written differently. Without ``before``, the part was staged by a version that
    stored no settings.
    """
    # A setting that did not exist then, and is not set now, is no change: it is a new one.
    names = [name for name in {**before, **now} if name in before or (before and now[name])]
    changed = ", ".join(
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    )
    if changed:
        raise CommitFailed(
            f"query {id_.query!r}, epoch {id_.epoch}, sink {id_.sink!r}: {target}: the epoch was "
            f"decided under other settings, by which its rows mean something else: {changed}. "
            "Nothing more was written. Start once with the earlier settings, which finishes the "
            f"epoch. {way_out(id_.sink, id_.epoch)}"
        )


@dataclass(frozen=True)
class StagedSink(Sink[StagedPart]):
    """A sink for a system that cannot hold a prepared transaction: this base stages its parts.

    Implement ``default_name``, ``check``, ``staging_folder``, ``write_epoch`` and ``last_seen``,
    and override the rest as needed. ``check`` must declare ``shared_disk=True``: driver and
    executors must see the staging folder. If the user chooses that folder, read the setting with
    ``local_folder``, and call ``check_writable`` in ``check``.
    """

    @property
    @abstractmethod
    def staging_folder(self) -> str:
        """The folder where parts wait for their commit: an absolute path, or a ``file:`` URI.

        It must stay the same as long as the target does. If the target is a file, it is beside that
        file; for a server, it is a folder that the user chooses.
        """

    @abstractmethod
    def write_epoch(self, epoch: StagedEpoch) -> Outcome:
        """Write the epoch and its ledger row atomically, unless the epoch is already there.

        In one transaction, read the ledger and pass it to ``epoch.is_committed``: if that is true,
        return ``ALREADY_COMMITTED`` and write nothing. Otherwise write ``epoch.batches()`` and the
        ledger row, and return ``COMMITTED``. Let errors propagate, so that the transaction is
        rolled back. Raise ``OutcomeUnknown`` (or let ``Unavailable`` propagate) if the target is
        busy, or its answer was lost: you will be called again.
        """

    def after_commit(self, epoch: StagedEpoch) -> None:
        """Called when the epoch is in the target, just before its parts are discarded.

        Override it to remember the epoch outside the target. It may be called again, and late.
        """

    @property
    def target_name(self) -> str:
        """The target's name in errors, such as "SQLite table 'orders' in /data/shop.db"."""
        return f"{type(self).__name__} {self.default_name!r}"

    @property
    def staging_folders(self) -> Iterable[str]:
        """Other folders in which sinks that were removed may have left parts (rule 27)."""
        return ()

    def staged_settings(self, schema: pa.Schema) -> Mapping[str, Any]:
        """Return the settings that determine how staged rows are written, as JSON values by name.

        They are stored with each part: a later start may finish a decided epoch, and with other
        settings its rows would be written differently. Such a start is refused.
        """
        return {}

    @property
    def staging_area(self) -> Staging:
        """The staging folder as a ``Staging``."""
        scheme, path = split_uri(self.staging_folder)
        return Staging(f"file:{path}" if scheme is None else self.staging_folder)

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        """Stage the part; rows that Python cannot hold are refused.

        Override it if the target takes more or fewer rows: refuse some, and ``stage`` the rest.
        """
        return self.stage((without_unreadable(batch, part) for batch in rows), part)

    def stage(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        """Stage these rows with ``staged_settings``; return ``None`` if there are none."""
        noted = (_with_settings(batch, self.staged_settings(batch.schema)) for batch in rows)
        return self.staging_area.write(noted, part)

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[StagedPart]]) -> CommitResult:
        """Write the epoch unless it is already there, then discard the staged parts."""
        if not parts:
            return CommitResult({})
        staged = StagedEpoch(self, epoch, parts)
        try:
            outcome = self._write(staged)
        except OutcomeUnknown as unknown:
            return CommitResult.all(parts, Outcome.UNKNOWN, str(unknown))
        except Unavailable as away:
            return CommitResult.all(parts, Outcome.UNKNOWN, f"{self.target_name}: {away}")
        except PartsDamaged as damaged:
            # Nothing of the epoch was written: all parts are lost, and the intact ones stay staged.
            return CommitResult.all(parts, Outcome.LOST, str(damaged))
        if outcome not in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED):
            raise CommitFailed(
                f"{staged}: {self.target_name}: write_epoch returned {outcome!r}, which is neither "
                "COMMITTED nor ALREADY_COMMITTED. The staged parts are kept. A sink that does not "
                "know the outcome must raise OutcomeUnknown"
            )
        if outcome is Outcome.COMMITTED:
            reach("ledger.after")
        self.after_commit(staged)
        self.staging_area.discard(parts)
        return CommitResult.all(parts, outcome)

    def _write(self, staged: StagedEpoch) -> Outcome:
        try:
            return self.write_epoch(staged)
        except PartsDamaged:
            # Another process may have finished the epoch and discarded its parts in the meantime.
            return self.write_epoch(staged)

    def abort(self, parts: Sequence[Prepared[StagedPart]]) -> None:
        """Delete the staged parts."""
        self.staging_area.discard(parts)

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[StagedPart]]:
        """Return the staged parts, half-written ones too."""
        return self.staging_area.in_doubt(query, self.staging_folders)


def _with_settings(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    """Return the batch with the settings in its schema, which is stored with it."""
    if not settings:
        return batch
    text = json.dumps(settings).encode()
    return batch.replace_schema_metadata({**(batch.schema.metadata or {}), _SETTINGS: text})


def settings_in(schema: pa.Schema) -> dict[str, Any]:
    """Return the settings stored in a schema; empty if there are none."""
    found: dict[str, Any] = json.loads((schema.metadata or {}).get(_SETTINGS, b"{}"))
    return found


def local_folder(setting: str, folder: str | os.PathLike[str]) -> str:
    """Return a user's staging folder as an absolute path: executors have other working folders."""
    given = os.fspath(folder)
    scheme, path = split_uri(given)
    if not given or scheme not in (None, "file"):
        raise BadSink(
            f"{setting}={given!r} is not a local folder. Give one that driver and executors share: "
            "rows wait there until they are committed. Nothing was written."
        )
    return os.path.abspath(path)


def check_writable(setting: str, folder: str, target: str) -> None:
    """Raise unless parts can be staged in this folder; creates nothing."""
    path = Path(folder)
    existing = next(each for each in (path, *path.parents) if each.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise BadSink(
            f"{target}: no files can be made in {setting}={folder!r}: {existing} is not a folder "
            "that can be written to. Give one that driver and executors share. Nothing was written."
        )


def folders_in(folder: str, prefix: str = "", below: str = "") -> list[str]:
    """Return the subfolders with this prefix, or the folder ``below`` in each, as URIs."""
    names = sorted(LocalFiles().names_beside(folder))
    found = (join(folder, name, below) if below else join(folder, name) for name in names)
    return [
        uri
        for name, uri in zip(names, found, strict=True)
        if name.startswith(prefix) and os.path.isdir(local_path(uri))
    ]


def delete_temporaries(folder: str) -> None:
    """Delete the temporary files that crashes left in a folder an hour or more ago.

    A younger one may belong to another driver that is alive. A writer that was paused that long
    finds its file deleted and fails: the new start that calls this has fenced it anyway.
    """
    for name in open_files(folder).names(folder):
        path = local_path(join(folder, name))
        with suppress(OSError):  # another user's, or already deleted: neither is worth a failure
            if name.startswith(TEMPORARY) and time.time() - os.path.getmtime(path) > _OLD_S:
                os.unlink(path)


def _id_of(name: str) -> PartId | None:
    """Return the part that a file belongs to, whole or half-written; None for other files."""
    return PartId.parse(name.partition(_TEMPORARY)[0])


class _Hashing:
    """The part of the file interface that Arrow needs; counts and hashes the data written."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.size_bytes = 0
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size_bytes += len(data)
        return self.file.write(data)

    def flush(self) -> None:
        """Do nothing: Arrow calls this, but the file is flushed once, before fsync."""


def _write(
    temporary: str, final: str, schema: Any, batches: Iterator[pa.RecordBatch]
) -> StagedPart:
    import pyarrow as pa

    rows = 0
    with open(local_path(temporary), "xb", buffering=_BUFFER_BYTES) as file:
        hashing = _Hashing(file)
        with pa.ipc.new_stream(pa.PythonFile(hashing, mode="w"), schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        file.flush()
        reach("staging.written")
        os.fsync(file.fileno())
    return StagedPart(final, rows, hashing.size_bytes, hashing.sha256.hexdigest())


@contextmanager
def _opened(part: StagedPart) -> Iterator[Any]:
    import pyarrow as pa

    try:
        source = pa.memory_map(local_path(part.file))
    except FileNotFoundError as error:
        raise PartsDamaged(f"staged file {part.file} is gone") from error
    with source, pa.ipc.open_stream(source) as reader:
        yield reader


def _damage(part: StagedPart) -> str:
    """Say what is wrong with a staged file; empty if nothing is."""
    import pyarrow as pa

    try:
        size_bytes = os.path.getsize(local_path(part.file))
        if size_bytes != part.size_bytes:
            return f"staged file {part.file} has {size_bytes} bytes, not {part.size_bytes}"
        with pa.memory_map(local_path(part.file)) as source:
            digest = hashlib.sha256(source.read_buffer()).hexdigest()
    except FileNotFoundError:  # another process that finished the epoch may delete it at any time
        return f"staged file {part.file} is gone"
    return "" if digest == part.sha256 else f"staged file {part.file} has other content than staged"
