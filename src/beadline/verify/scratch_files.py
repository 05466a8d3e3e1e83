"""Files and SQLite: scratch folders, and independent readers for them.

The readers are not the sinks' own code, so that the code under judgement has no part in it.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from beadline.verify.scratch import ScratchLocation, ScratchStore

if TYPE_CHECKING:
    from beadline.sinks import FileSink, SqliteSink

_ROW = tuple[Any, ...]


def _clone_files(sink: FileSink, place: ScratchLocation) -> FileSink:
    folder = place.folder / "files" / sink.default_name
    staging = None if sink.staging is None else str(place.folder / "files" / "staging")
    folder.parent.mkdir(parents=True, exist_ok=True)
    return replace(sink, path=str(folder), staging=staging)


def _files_note(sink: FileSink) -> str:
    if sink.target.startswith("file:"):
        return ""
    return f"{sink.target} is not on this machine's disks: its clone is, in a local folder"


def _folder(sink: FileSink) -> Path:
    return Path(sink.target.removeprefix("file:").replace("//", "/"))


def _shown_files(sink: FileSink) -> Iterator[Sequence[Any]]:
    """Every row of every finished file; columns by name, those of the path among them."""
    folder = _folder(sink)
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        inside = path.relative_to(folder).parts
        if not path.is_file() or any(part.startswith((".", "_")) for part in inside):
            continue
        named = tuple(part for part in map(unquote, inside[:-1]) if "=" in part)
        for row in _rows_of(sink.format, path):
            yield (*named, *row)


def _rows_of(kind: str, path: Path) -> Iterator[_ROW]:
    if kind == "parquet":
        import pyarrow.parquet as pq

        table = pq.ParquetFile(path).read()
    elif kind == "orc":
        from pyarrow import orc

        table = orc.ORCFile(path).read()
    else:  # text of one row a line, possibly compressed
        yield from _lines(path)
        return
    names = sorted(table.schema.names)
    columns = [table.column(name).to_pylist() for name in names]
    for values in zip(*columns, strict=True):
        yield tuple(zip(names, values, strict=True))


def _lines(path: Path) -> Iterator[_ROW]:
    import pyarrow as pa

    with pa.input_stream(str(path), compression="detect") as stream:
        for line in stream.read().decode("utf-8", "replace").splitlines():
            yield (line,)


def _remove_files(sink: FileSink, query: str) -> None:
    folder = _folder(sink)
    for each in (folder, folder.with_name(f".{folder.name}.beadline")):
        shutil.rmtree(each, ignore_errors=True)


FILES_STORE = ScratchStore(
    clone=_clone_files,
    shown=_shown_files,
    remove=_remove_files,
    no_cuts="files have no server of their own here",
    note=_files_note,
)


def _clone_sqlite(sink: SqliteSink, place: ScratchLocation) -> SqliteSink:
    """An empty table with the columns, keys and indexes of the real one, if that is there."""
    path = place.folder / "sqlite" / Path(sink.path).name
    path.parent.mkdir(parents=True, exist_ok=True)
    if Path(sink.path).exists():
        ask = "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY rowid"
        with closing(sqlite3.connect(f"file:{sink.path}?mode=ro", uri=True)) as database:
            made = [sql for (sql,) in database.execute(ask, (sink.table,))]
        with closing(sqlite3.connect(path)) as database:
            known = "SELECT 1 FROM sqlite_master WHERE name = ?"
            if database.execute(known, (sink.table,)).fetchone() is None:
                for sql in made:
                    database.execute(sql)
                database.commit()
    return replace(sink, path=str(path))


def _shown_sqlite(sink: SqliteSink) -> list[_ROW]:
    """Read a copy: opening it in place could roll an interrupted transaction back."""
    source = Path(sink.path)
    if not source.exists():
        return []
    with tempfile.TemporaryDirectory(prefix="beadline-verify-") as folder:
        for _ in range(10):
            if _copied(source, Path(folder)):
                break
        with closing(sqlite3.connect(Path(folder, source.name))) as copy:
            known = "SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE"
            if copy.execute(known, (sink.table,)).fetchone() is None:
                return []
            table = sink.table.replace('"', '""')
            return copy.execute(f'SELECT * FROM "{table}"').fetchall()


def _copied(source: Path, folder: Path) -> bool:
    """Copy the database with its journals; return whether nothing wrote to it meanwhile."""
    names = [source.name + suffix for suffix in ("-journal", "-wal", "")]

    def state() -> list[tuple[str, int, int]]:
        found = [path for name in names if (path := source.with_name(name)).exists()]
        return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in found]

    try:
        before = state()
        for name in names:
            (folder / name).unlink(missing_ok=True)
        for name, _, _ in before:
            shutil.copy2(source.with_name(name), folder / name)
        return state() == before
    except FileNotFoundError:  # a journal that a commit deleted in between
        return False


def _remove_sqlite(sink: SqliteSink, query: str) -> None:
    path = Path(sink.path)
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.rmtree(path.parent / f".{path.name}.beadline", ignore_errors=True)


SQLITE_STORE = ScratchStore(
    clone=_clone_sqlite,
    shown=_shown_sqlite,
    remove=_remove_sqlite,
    grows=lambda sink: sink.mode == "append",
    atomic=lambda sink: True,
    no_cuts="SQLite has no server",
)
