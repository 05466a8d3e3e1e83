"""A fixed range of the job's sources, so that every run of it reads the same rows.

What is there now is copied: files into a scratch folder, records of Kafka into a scratch topic. The
other ways do not hold. Spark's Kafka source has no end; ``available_now`` fixes one, but again at
every start, so that a restart after a kill would read further, with other epochs. A folder gets new
files, and loses old ones. A copy is the same for every start of every run, and nothing that is done
to the job can touch the real source.

The job does not notice: while ``job(spark)`` is called, every frame that a ``readStream`` gives is
replaced by one that reads the copy, in epochs of a bounded size. Afterwards the sources of the plan
are looked at; one that was not replaced (a table, rate, a socket) is refused.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from beadline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from beadline.guarantee.sources import SourceFacts

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "avro", "xml", "binaryfile")
_KAFKA = "kafka"
_FILES_KEPT = "files"
# Starting long ago, one second apart: Spark takes files in the order of their times.
_FIRST_TIME_S = 1_600_000_000


# Name, place and options: these identify the same source in another process.
Key = tuple[str, str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class RangeLimits:
    """How much of each source is taken, and in how many epochs."""

    epochs: int = 12
    files: int = 120
    records: int = 20_000


@dataclass(frozen=True)
class SourceRange:
    """One source, fixed: what it was, where its copy is, and the options of Spark's reader."""

    key: Key = field(repr=False)
    path: str | None
    options: dict[str, str] = field(repr=False)
    said: str
    topics: tuple[str, ...] = ()
    tag: str = ""
    client: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The format, as Spark calls it."""
        return self.key[0]

    @property
    def where(self) -> str:
        """The real folder or topics."""
        return self.key[1]


def key_of(seen: SourceFacts) -> Key:
    """Tell sources apart: two clusters may have one name of a topic, a folder two filters."""
    return seen.name, seen.where, tuple(sorted(seen.options.items()))


def found_again(ranges: Sequence[SourceRange], seen: SourceFacts) -> SourceRange:
    """The copy of a source, in another process that builds the same job."""
    same = [each for each in ranges if each.key == key_of(seen)]
    if not same:  # an option's value may differ each time, such as one that holds the time
        near = [each for each in ranges if (each.name, each.where) == (seen.name, seen.where)]
        same = near if len(near) == 1 else []
    if not same:
        raise UsageError(f"{seen.part} was not there when the job was looked at first")
    return same[0]


def fix(
    frame: DataFrame, seen: SourceFacts, folder: Path, tag: str, limits: RangeLimits
) -> SourceRange:
    """Copy what a source holds now."""
    name = seen.name.lower()
    if name in FILE_FORMATS:
        return _fix_files(frame, seen, folder, limits)
    if name == _KAFKA:
        from beadline.verify.topic_range import fix_topics

        return fix_topics(seen, tag, limits)
    raise UsageError(
        f"source {seen.name} {seen.where}".rstrip() + " cannot be fixed: verify must give every "
        "run of the job the same rows, and knows how to do that for files and for Kafka. Record "
        "some of its rows first, such as frame.writeStream.format('json').start(folder), and let "
        "the job read that folder. Nothing was written."
    )


def _fix_files(
    frame: DataFrame, seen: SourceFacts, folder: Path, limits: RangeLimits
) -> SourceRange:
    options = {key: value for key, value in seen.options.items() if key != "path"}
    paths = _listed(frame, seen, options)
    if not paths:
        raise UsageError(f"{seen.part} holds no files: there is nothing to verify.")
    taken = paths[: limits.files] if limits.files else paths
    scratch = folder / f"{_FILES_KEPT}-{len(list(folder.glob(_FILES_KEPT + '-*')))}"
    root = os.path.commonpath([os.path.dirname(path) for path, _ in taken])
    for number, (path, copy) in enumerate(taken):
        target = scratch / os.path.relpath(path, _base(root))
        target.parent.mkdir(parents=True, exist_ok=True)
        copy(target)
        os.utime(target, (_FIRST_TIME_S + number, _FIRST_TIME_S + number))
    per_epoch = math.ceil(len(taken) / limits.epochs)
    options = {**options, "maxfilespertrigger": str(per_epoch), "maxfileage": "36500d"}
    options.pop("latestfirst", None)
    options.pop("basepath", None)
    cut = f", the first {len(taken):,}" if len(taken) < len(paths) else ""
    said = f"{len(paths):,} files of {seen.where}{cut}, {per_epoch} an epoch"
    return SourceRange(key_of(seen), str(scratch), options, said)


def _base(root: str) -> str:
    """The folder above the first ``column=value``: columns of the path must stay in the path."""
    parts = Path(root).parts
    named = next((index for index, part in enumerate(parts) if "=" in part), len(parts))
    return str(Path(*parts[:named]))


def _listed(
    frame: DataFrame, seen: SourceFacts, options: dict[str, str]
) -> list[tuple[str, Callable[[Path], None]]]:
    """The files that Spark would read, oldest first, each with a function that copies it."""
    spark = frame.sparkSession
    reader = spark.read.format(seen.name).schema(frame.schema).options(**options)
    uris = reader.load(seen.where.split(", ")).inputFiles()
    jvm: Any = spark._jvm
    conf = spark._jsc.hadoopConfiguration()
    found = []
    for uri in uris:
        parts = urlsplit(uri)
        if parts.scheme == "file":
            local = unquote(parts.path)
            found.append((os.stat(local).st_mtime, local, _copy_local(local)))
            continue
        java_path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(uri))
        system = java_path.getFileSystem(conf)
        changed = system.getFileStatus(java_path).getModificationTime() / 1000
        found.append((changed, unquote(parts.path), _copy_remote(jvm, system, java_path)))
    found.sort(key=lambda each: each[:2])
    return [(path, copy) for _, path, copy in found]


def _copy_local(path: str) -> Callable[[Path], None]:
    def copy(target: Path) -> None:
        shutil.copyfile(path, target)

    return copy


def _copy_remote(jvm: Any, system: Any, path: Any) -> Callable[[Path], None]:
    def copy(target: Path) -> None:
        # Without Hadoop's checksum file.
        system.copyToLocalFile(False, path, jvm.org.apache.hadoop.fs.Path(str(target)), True)

    return copy


def read(frame: DataFrame, fixed: SourceRange) -> DataFrame:
    """The same frame on the copy."""
    reader = frame.sparkSession.readStream.format(fixed.name).options(**fixed.options)
    if fixed.name.lower() != _KAFKA:
        return reader.schema(frame.schema).load(fixed.path)
    from pyspark.sql import functions as F

    made = reader.load()
    # A job may ask which topic a record is of: it sees the real one.
    return made.withColumn("topic", F.regexp_replace("topic", f"-{fixed.tag}$", ""))


Swap = Callable[["DataFrame", "SourceFacts"], "SourceRange"]


@contextmanager
def redirected(swap: Swap) -> Iterator[list[SourceRange]]:
    """Inside the block, every stream is read from the copy that ``swap`` names."""
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from beadline.sources.ticker import TICKER_FORMAT, hold_ticks
    from beadline.spark.facts import sources

    real = DataStreamReader._df
    used: list[SourceRange] = []
    inside = False

    def replaced(self: Any, jdf: Any) -> DataFrame:
        nonlocal inside
        frame = real(self, jdf)
        if inside:  # this is the copy itself
            return frame
        inside = True
        try:
            seen = list(sources(frame))
            if seen and seen[0].name == TICKER_FORMAT:  # copies are read at their own pace
                hold_ticks()
                return frame
            if len(seen) != 1:  # a table, or a view: said later, when the plan is looked at
                return frame
            fixed = swap(frame, seen[0])
            used.append(fixed)
            return read(frame, fixed)
        finally:
            inside = False

    DataStreamReader._df = replaced  # type: ignore[method-assign]
    try:
        yield used
    finally:
        DataStreamReader._df = real  # type: ignore[method-assign]


def check_all_fixed(frame: DataFrame, used: list[SourceRange]) -> None:
    """Refuse a plan with a source that still is the real one."""
    from beadline.sources.ticker import TICKER_FORMAT
    from beadline.spark.facts import sources

    copies = {each.path for each in used} | {each.options.get("subscribe") for each in used}
    for seen in sources(frame):
        if seen.name != TICKER_FORMAT and (seen.where or None) not in copies:
            raise UsageError(
                f"source {seen.part} of the job could not be replaced by a copy. Read it with "
                "spark.readStream or beadline.sources inside job(spark). Nothing was written."
            )
