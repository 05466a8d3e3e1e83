"""Staging: how a system that cannot hold a prepared transaction takes part all the same.

At prepare the rows of a part become one Arrow file in a staging folder: durable, and seen by no
reader. At commit the sink writes them to the outside system together with its ledger row. The
file's name is the part's id, so that after a crash its leftovers can be told from a stranger's::

    <folder>/<part id>.tmp-1f00c0de   being written; left like this by a crash, swept as in doubt
    <folder>/<part id>                prepared: whole, fsynced, and so is its name

Staging folders are local for now: driver and executors must see the same disk.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

from beadline.committable import Committable
from beadline.errors import BadSink
from beadline.files import join, open_files, split_uri
from beadline.files.base import TEMPORARY
from beadline.files.local import local_path
from beadline.ids import PartId, QueryId
from beadline.points import reach
from beadline.sink import Part, Prepared

if TYPE_CHECKING:
    import pyarrow as pa

_TEMPORARY = ".tmp-"
_BUFFER_BYTES = 1 << 20
_OLD_S = 3600.0


@dataclass(frozen=True)
class StagedPart(Committable):
    """One Arrow file: where it is, and what it must look like when it is read again."""

    file: str
    rows: int
    size_bytes: int
    sha256: str

    @property
    def rows_held(self) -> int | None:
        """What was staged."""
        return self.rows


@dataclass(frozen=True)
class Staging:
    """A folder of staged parts, named by a qualified URI."""

    folder: str

    def __post_init__(self) -> None:
        """Refuse what could not be written."""
        if split_uri(self.folder)[0] != "file":
            raise BadSink(
                f"staging folder {self.folder} is not on a local disk, which is all that staging "
                "can use so far. Give a folder that driver and executors share. Nothing is written."
            )

    def write(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        """Stage a part, batch by batch; ``None`` if there are no rows.

        An error removes what was begun. A crash cannot, so its temporary file is in doubt.
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
                    f"part {part.id} was swept while it was written, or is staged already: this "
                    "attempt must not go on"
                )
        except Exception:
            files.delete(temporary)
            raise
        files.sync_folder(self.folder)
        return staged

    def damage(self, parts: Sequence[Prepared[StagedPart]]) -> dict[PartId, str]:
        """Return the parts that are gone or not as they were staged, each with the finding."""
        found = {part.id: _damage(part.committable) for part in parts}
        return {id_: what for id_, what in found.items() if what}

    def read(self, part: StagedPart) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a part that ``damage`` found whole."""
        import pyarrow as pa

        with (
            pa.memory_map(local_path(part.file)) as source,
            pa.ipc.open_stream(source) as reader,
        ):
            yield from reader

    def in_doubt(
        self, query: QueryId, beside: Iterable[str] = ()
    ) -> Iterable[Prepared[StagedPart]]:
        """Yield what is here of this query, half-written files too; enough to abort it by.

        ``beside`` are folders in which a sink that is gone may have left something.
        """
        for folder in dict.fromkeys((self.folder, *beside)):
            ids = {_id_of(name) for name in open_files(folder).names(folder)}
            for id_ in ids:
                if id_ is not None and id_.belongs_to(query):
                    yield Prepared(id_, 0, StagedPart(join(folder, str(id_)), 0, 0, ""))

    def discard(self, parts: Sequence[Prepared[StagedPart]]) -> None:
        """Delete everything that carries the ids of these parts, and nothing else."""
        files = open_files(self.folder)
        ids = {part.id for part in parts}
        folders = (part.committable.file.rpartition("/")[0] for part in parts)
        for folder in dict.fromkeys((self.folder, *folders)):
            for name in files.names(folder):
                if _id_of(name) in ids:
                    files.delete(join(folder, name))

    def pattern(self, query: QueryId) -> str:
        """Say which files are this query's, those of its earlier checkpoints too, for people."""
        return f"{local_path(self.folder)}/beadline~{query.name}~*"


def folders_in(folder: str, prefix: str = "", below: str = "") -> list[str]:
    """Return the folders in one whose names begin so, or what is ``below`` in each, as URIs."""
    path = local_path(folder)
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    found = (join(folder, name, below) if below else join(folder, name) for name in names)
    return [
        uri
        for name, uri in zip(names, found, strict=True)
        if name.startswith(prefix) and os.path.isdir(local_path(uri))
    ]


def tidy(folder: str) -> None:
    """Delete what crashes left of small files there, an hour ago or more.

    A younger one may be another driver's that lives. Who sleeps for so long while it writes one
    finds it gone and fails: a new start, which is what calls this, has fenced it anyway.
    """
    for name in open_files(folder).names(folder):
        path = local_path(join(folder, name))
        with suppress(OSError):  # somebody else's, or deleted already: neither is worth a failure
            if name.startswith(TEMPORARY) and time.time() - os.path.getmtime(path) > _OLD_S:
                os.unlink(path)


def _id_of(name: str) -> PartId | None:
    """Return the part that a file belongs to, whole or half-written; None for a stranger's."""
    return PartId.parse(name.partition(_TEMPORARY)[0])


class _Hashing:
    """The little of a file that Arrow needs, which counts and hashes what goes through."""

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
        """Arrow's wish, not ours: the file is flushed once, before fsync."""


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


def _damage(part: StagedPart) -> str:
    """Say what is wrong with a staged file; empty if nothing is."""
    import pyarrow as pa

    try:
        size_bytes = os.path.getsize(local_path(part.file))
        if size_bytes != part.size_bytes:
            return f"staged file {part.file} has {size_bytes} bytes, not {part.size_bytes}"
        with pa.memory_map(local_path(part.file)) as source:
            digest = hashlib.sha256(source.read_buffer()).hexdigest()
    except FileNotFoundError:  # another, who has finished the epoch, may delete it at any moment
        return f"staged file {part.file} is gone"
    return "" if digest == part.sha256 else f"staged file {part.file} has other content than staged"
