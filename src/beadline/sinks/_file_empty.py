"""Files without rows: Spark's first task writes one even for an empty frame.

An empty epoch must not add a file for readers to open. Only the small file of the first task
(``part-00000``) can be such a one, so this costs one small read per epoch and no pass over rows. In
doubt a file is kept: one without rows does no harm.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping

from beadline.files import FileSystem, join
from beadline.files.base import FoundFile

_SIZE_MAX_BYTES = 64 * 1024


def without_rows(
    files: FileSystem, folder: str, found: FoundFile, format_: str, options: Mapping[str, str]
) -> bool:
    """Whether a file that Spark wrote is known to hold no rows."""
    from pyarrow import ArrowException

    name = found.path.rpartition("/")[2]
    if not name.startswith("part-00000-") or found.size > _SIZE_MAX_BYTES:
        return False
    data = files.read(join(folder, found.path)) or b""
    if len(data) != found.size:
        return False
    try:
        return _empty(data, name, format_, {key.lower(): value for key, value in options.items()})
    except (ArrowException, OSError, EOFError):
        return False  # encrypted, or in a form that only Spark knows


def _empty(data: bytes, name: str, format_: str, options: Mapping[str, str]) -> bool:
    if format_ == "parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(io.BytesIO(data)).num_rows) == 0
    if format_ == "orc":
        from pyarrow import orc

        return int(orc.ORCFile(io.BytesIO(data)).nrows) == 0
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    elif not name.endswith((".json", ".csv")):
        return False
    if format_ == "csv" and options.get("header", "").lower() == "true":
        plain = options.get("encoding", options.get("charset", "utf-8")).lower() == "utf-8"
        return plain and data.count(options.get("linesep", "\n").encode()) == 1
    return not data
