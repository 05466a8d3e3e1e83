"""``FileSink``: files by Spark's own writer, finished by rename.

A file is *in progress* while Spark writes it, *pending* once its epoch is prepared, and *finished*
when it has its name in the target. Pending files live beside the target, not in it, so that the
target, however it is listed, shows finished files only::

    out/day=1/orders-000000012-1f2e3d4c-g3-part-00000-<uuid>-c000.snappy.parquet    finished
    .out.beadline/<part id>/day=1/part-00000-<uuid>-c000.snappy.parquet             pending
    .out.beadline/<part id>/_temporary/…                                            in progress
    .out.beadline/<part id>.moving/…          decided: its files are being renamed into the target
    out/.beadline/<query>/<sink>~<incarnation>~<epoch>~<nonce>/     an empty folder: the mark of the
                                                                    newest finished epoch

The order of a commit: look at the mark, rename it to say that the epoch is begun, rename the
pending folder to ``.moving``, rename its files, rename the mark to say that the epoch is finished,
delete the folder. Why that is enough is said in ``moves`` and ``marks``.

To start over with a new checkpoint, delete the target folder as a whole, and the marks with it. For
the same reason a query that continues from its old checkpoint notices at the start and at every
commit that the folder is gone, was deleted and recreated or restored from an older copy, or that
its disk is not mounted. Files *in* it may be taken away by readers at any time, unnoticed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from beadline.files import FileSystem, join, open_files, qualify, split_uri
from beadline.sink import (
    NEW_QUERY,
    BadSink,
    Capabilities,
    CommitFailed,
    CommitResult,
    Committable,
    EpochId,
    FrameSink,
    Guarantee,
    Outcome,
    Part,
    PartId,
    Prepared,
    QueryId,
    RowsRefused,
    Seen,
    WrongCheckpoint,
    check_previous,
    name_from,
    reach,
    way_out,
)
from beadline.sinks.files.marks import Mark, Marks, counts, half_gone
from beadline.sinks.files.moves import (
    MOVING,
    Moving,
    PendingFiles,
    ancestors,
    discard,
    each,
    parent,
    walk,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["FileSink", "PendingFiles"]

# Hadoop's committer must be version 1, also where a cluster's default is 2. With 2 a task moves
# its files into the output as it commits: an attempt that dies half-way, or loses to a speculative
# one after it began, leaves files there beside those of the attempt that replaces it, and rows
# would be double. With 1 a task commits by renaming one folder inside ``_temporary``, which the
# next attempt replaces, and the job takes each task's files from there once. The price is one
# rename per file on the driver. ``_SUCCESS`` would only be one more file to leave out.
_WRITER = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
# On local disks Hadoop writes a checksum file beside every file, and runs `chmod` for both: most of
# the time of an epoch with many small files, and nothing that a finished file keeps. The raw file
# system does neither. Sessions cache file systems by scheme, so the cache is passed by as well.
_LOCAL = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


# What a target's folder in a shared ``staging`` is called: its last name and a digest of it all.
_DIGEST_DIGITS = 12
_STAGED_NAME = re.compile(rf".+-[0-9a-f]{{{_DIGEST_DIGITS}}}", re.DOTALL)
# Another process of this query may be at the same commit: then what was seen is looked at again.
LOOKS_MAX = 10
EXCHANGED = "the target was deleted or replaced while this epoch was committed to it"
NOT_BEGUN = (
    "{} files of this epoch were moved into a different target than the current one, which has no "
    "record that this epoch was begun: it was deleted, or restored from an older copy"
)


@dataclass(frozen=True)
class FileSink(FrameSink[PendingFiles]):
    """A folder of parquet, orc, json or csv files that readers can list at any time.

    ``options`` go to Spark's writer; those under which a file would not hold every value are
    refused. ``staging`` is a folder for pending files, on the target's volume and outside it;
    without it a hidden one beside the target is used. Read the files with ``read_options``::

        spark.read.schema(...).options(**sink.read_options).format("csv").load(sink.path)
    """

    path: str
    format: str = "parquet"
    partition_by: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    staging: str | None = None

    committable: ClassVar[type[Committable]] = PendingFiles

    def __post_init__(self) -> None:
        """One column may be named without a tuple around it, and a path be a ``Path``."""
        object.__setattr__(self, "path", os.fspath(self.path))
        columns = self.partition_by
        columns = (columns,) if isinstance(columns, str) else tuple(columns)
        object.__setattr__(self, "partition_by", columns)
        object.__setattr__(self, "options", dict(self.options))

    @property
    def default_name(self) -> str:
        """Made from the target's last name."""
        return name_from("files", self.target.rpartition("/")[2])

    @property
    def target(self) -> str:
        """The target folder as a qualified URI."""
        return qualify(self.path)

    @property
    def pending(self) -> str:
        """The folder of this target's pending files."""
        folder, _, name = self.target.rpartition("/")
        if self.staging is None:
            return join(folder, f".{name}.beadline")
        # A staging folder may be shared: two targets must not take each other's files for theirs.
        digest = hashlib.sha256(self.target.encode()).hexdigest()[:_DIGEST_DIGITS]
        return join(qualify(self.staging), f"{name}-{digest}")

    @property
    def read_options(self) -> dict[str, str]:
        """The options with which Spark reads the values that were written, to the last blank."""
        from beadline.sinks.files.text import read_options

        return read_options(self.format, self.options)

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Everything that can be known before the first row; creates nothing."""
        from beadline.sinks.files.checks import (
            check_format,
            check_places,
            check_schema,
            check_values,
        )

        where = f"FileSink({self.path!r})"
        if not self.path.strip() or parent(self.target) == self.target:
            raise BadSink(
                f"{where}: the target must be a folder below a root. Nothing was written."
            )
        check_format(where, self.format, self.options)
        check_schema(where, schema, self.format, self.partition_by)
        check_values(where, schema, self.format, self.options, self.partition_by)
        files = open_files(self.target)
        check_places(where, files, self.target, self.pending, query.checkpoint)
        return Capabilities(
            guarantee=Guarantee.EXACTLY_ONCE,
            sentence="Each file of an epoch appears whole, by one rename after the decision; a "
            "repeated or late commit finds nothing left to rename.",
            target=self.target,
            shared_disk=self.target.startswith("file:"),
            start_over=f"delete the folder {self.target} as a whole",
            remembers=True,
            refuses_rows=False,  # Spark's writer tells no row from another
        )

    def prepare(self, frame: DataFrame, part: Part) -> PendingFiles | None:
        """Let Spark write into a folder of this attempt's own, then make its files durable."""
        from beadline.sinks.files.rows import check_session, observe
        from beadline.sinks.files.text import write_options

        files = open_files(self.target)
        folder = join(self.pending, str(part.id))
        check_session(frame, self.format)
        files.make_folder(self.pending)
        files.delete(folder)
        frame, written = observe(frame, self.format, self.options, self.partition_by)
        local = _LOCAL if split_uri(folder)[0] == "file" else {}
        writer = frame.write.format(self.format).mode("errorifexists")
        options = write_options(self.format, self.options)
        writer = writer.options(**{**local, **options, **_WRITER})
        writer.partitionBy(*self.partition_by).save(folder)
        reach("files.written")
        found = walk(files, folder)
        try:
            rows, empty = written.rows(folder, found)
        except RowsRefused:
            files.delete(folder)
            raise
        found = [file for file in found if file.path not in empty]
        if not rows:
            files.delete(folder)
            return None
        paths = sorted(file.path for file in found)
        files.sync_files(folder, paths)
        each(files.sync_folder, [join(folder, name) for name in ancestors(paths)])
        files.sync_folder(self.pending)
        sizes = sorted((file.path, file.size) for file in found)
        return PendingFiles(self.target, folder, tuple(sizes), rows)

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[PendingFiles]]) -> CommitResult:
        """Rename what is still pending; what is gone was finished before and stays gone."""
        if not parts:
            return CommitResult({})
        target, folder = parts[0].committable.target, parts[0].committable.folder
        files = open_files(target)
        # Where the parts were prepared, which is not `self.pending` if `staging` was changed since.
        marks = Marks(files, target, parent(folder), epoch.query.name)
        moving = Moving(files, target, marks, epoch, parts[0].id.sink)
        begun = _begin(moving, parts)
        if begun is None:
            discard(files, parts)
            return CommitResult.all(parts, Outcome.ALREADY_COMMITTED)
        reach("files.begun")
        outcomes = {part.id: moving.open(part) for part in parts}
        reach("files.moving")
        moving.finish()
        reach("files.renamed")
        if Outcome.LOST not in outcomes.values():
            if not marks.finish(begun, epoch):
                raise half_gone(epoch, moving.sink, target, EXCHANGED)
            discard(files, parts)
        return CommitResult(outcomes)

    def abort(self, parts: Sequence[Prepared[PendingFiles]]) -> None:
        """Delete the pending folders."""
        discard(open_files(self.target), parts)

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[PendingFiles]]:
        """Every pending folder of this query, in whatever state its writer left it.

        One that is ``.moving`` too: it may be of an epoch that was dropped by name, or published
        without a decision; the coordinator knows which are decided. In a ``staging`` folder, those
        of other targets as well: their sinks may have been removed from the query.
        """
        files = open_files(self.target)
        for place, name in self._staged(files):
            id_ = PartId.parse(name.removesuffix(MOVING))
            if id_ is not None and id_.belongs_to(query):
                found = sorted((f.path, f.size) for f in walk(files, join(place, name)))
                folder = join(place, str(id_))
                yield Prepared(id_, 0, PendingFiles(self.target, folder, tuple(found)))

    def _staged(self, files: FileSystem) -> Iterator[tuple[str, str]]:
        """Every folder of pending files and each name in it, this target's first."""
        pending = self.pending
        yield from ((pending, name) for name in files.names(pending))
        if self.staging is None:
            return
        staging = qualify(self.staging)
        for other in files.names_beside(staging):
            place = join(staging, other)
            if place != pending and _STAGED_NAME.fullmatch(other):
                yield from ((place, name) for name in files.names_beside(place))

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """The newest whole epoch of this sink; another incarnation's, of any sink, comes first."""
        marks = Marks(open_files(self.target), self.target, self.pending, query.name).all()
        others = [mark for mark in marks if mark.incarnation != query.incarnation]
        if others:
            # Files of an epoch that was begun may be there: it counts, even if it is the first.
            mark = max(others, key=lambda one: one.epoch)
            return mark.seen or Seen(mark.incarnation, mark.reaches, "")
        own = counts(marks, name, query.incarnation)
        return None if own is None else own.seen


def _begin(moving: Moving, parts: Sequence[Prepared[PendingFiles]]) -> Mark | None:
    """Check that the epoch may be moved in, and mark it as begun.

    None if it is there already.
    """
    marks, epoch, sink = moving.marks, moving.epoch, moving.sink
    incarnation = epoch.query.incarnation
    for _ in range(LOOKS_MAX):
        found = marks.all()
        held = counts(found, sink, incarnation)
        if held is not None and held.epoch >= epoch.number:
            return None
        # Before anything is made: a folder that is gone must not come back with a gap (rule 25).
        check_previous(epoch, held.epoch if held is not None and held.epoch >= 0 else None)
        _check_alone(found, moving.target, epoch)
        if held is not None and held.reaches > epoch.number:
            raise CommitFailed(
                f"query {epoch.query.name!r}, epoch {epoch.number}: {moving.target} has begun "
                f"epoch {held.reaches} and does not hold this one, which was given up, or the "
                "decision log was rewound. Nothing of it was written. Is another driver of this "
                f"query running? {way_out(sink, epoch.number)}"
            )
        if held is None or held.next != epoch.number:
            missing = [path for part in parts for path in moving.missing(part)]
            if missing and marks.of(sink, incarnation) != held:
                continue  # another process is at this epoch
            if missing:
                raise half_gone(epoch, sink, moving.target, NOT_BEGUN.format(len(missing)))
        if held is None and not moving.files.exists(moving.target):
            marks.forget_former()  # of a folder that is gone
        begun = marks.begin(held, sink, epoch)
        if begun is not None:
            return begun
    raise half_gone(epoch, sink, moving.target, EXCHANGED)


def _check_alone(marks: Sequence[Mark], target: str, epoch: EpochId) -> None:
    """Two queries of one name must not take turns; but a new target knows neither."""
    for mark in marks:
        if mark.incarnation != epoch.query.incarnation:
            raise WrongCheckpoint(
                f"query {epoch.query.name!r}, epoch {epoch.number}: {target} already "
                f"holds epoch {mark.reaches} of another query of this name, which runs from "
                "another checkpoint. This epoch stays pending and nothing of it shows. Stop "
                f"one of the two. {NEW_QUERY}"
            )
