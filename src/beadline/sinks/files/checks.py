"""What can be known to go wrong with a folder of files before the first row is written.

Spark would find most of this itself, but in the middle of the first epoch; and some of it (a folder
on another volume) only at the first commit, when the epoch is decided and cannot be taken back.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from beadline.files import FileSystem, has_atomic_create, join, split_uri
from beadline.sink import NOTHING_WRITTEN, BadSink
from beadline.sinks.files.moves import parent
from beadline.sinks.files.text import lossy_options
from beadline.sinks.files.values import NAME_BYTES_MAX, folder_bytes

_TEXT = frozenset(("none", "uncompressed", "bzip2", "gzip", "lz4", "snappy", "deflate", "zstd"))
COMPRESSION: dict[str, frozenset[str]] = {
    "parquet": frozenset(
        ("none", "uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "lz4_raw", "zstd")
    ),
    "orc": frozenset(("none", "uncompressed", "snappy", "zlib", "lzo", "zstd", "lz4", "brotli")),
    "json": _TEXT,
    "csv": _TEXT,
}
# Set by the sink itself: another committer or folder would break what the sink promises.
_RESERVED = ("path", "mapreduce.")


def below(uri: str, folder: str) -> bool:
    """Whether ``uri`` is ``folder`` or something in it."""
    return f"{uri.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def check_format(where: str, format_: str, options: Mapping[str, object]) -> None:
    """Refuse formats and options that Spark would refuse later, or that would break the rules."""
    if format_ not in COMPRESSION:
        known = ", ".join(COMPRESSION)
        raise BadSink(f"{where}: format {format_!r} is not one of {known}. {NOTHING_WRITTEN}")
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise BadSink(
                f"{where}: option {key!r} is a {type(value).__name__}; options are text, numbers "
                f"or booleans, by name, as Spark's writer takes them. {NOTHING_WRITTEN}"
            )
        if key.lower().startswith(_RESERVED):
            raise BadSink(
                f"{where}: option {key!r} cannot be given: the sink sets where and how files are "
                f"moved, and its guarantee depends on that. {NOTHING_WRITTEN}"
            )
        codec = str(value).lower()
        # A class name (of a text codec) has dots, and is Spark's to judge.
        if key.lower() == "compression" and "." not in codec and codec not in COMPRESSION[format_]:
            known = ", ".join(sorted(COMPRESSION[format_]))
            raise BadSink(
                f"{where}: {format_} has no compression {value!r}; use one of {known}. "
                f"{NOTHING_WRITTEN}"
            )


def check_schema(where: str, schema: pa.Schema, format_: str, partition_by: Sequence[str]) -> None:
    """Refuse columns that the format cannot hold, and partition columns that are not there."""
    columns = {name.lower(): name for name in schema.names}
    if len(columns) < len(schema.names):
        twice = sorted({n for n in schema.names if columns[n.lower()] != n} or {*schema.names})
        raise BadSink(
            f"{where}: column names must differ by more than upper and lower case, and these do "
            f"not: {', '.join(twice)}. Rename with select(... .alias()). {NOTHING_WRITTEN}"
        )
    for name in partition_by:
        if not isinstance(name, str) or name.lower() not in columns:
            raise BadSink(
                f"{where}: partition_by names {name!r}, which is not a column; there are "
                f"{', '.join(schema.names)}. {NOTHING_WRITTEN}"
            )
        if name.startswith("."):
            raise BadSink(
                f"{where}: folders of partition column {name!r} would be hidden from readers. "
                f"{NOTHING_WRITTEN}"
            )
        if pa.types.is_nested(schema.field(columns[name.lower()]).type):
            raise BadSink(f"{where}: nested column {name!r} cannot name folders. {NOTHING_WRITTEN}")
        if "\0" in name or folder_bytes(name) > NAME_BYTES_MAX:
            raise BadSink(
                f"{where}: no folder can be named after partition column {name!r}: a folder name, "
                f"including the value, cannot contain NUL or exceed {NAME_BYTES_MAX} bytes. "
                f"{NOTHING_WRITTEN}"
            )
    folders = {name.lower() for name in partition_by}
    if len(folders) < len(partition_by):
        raise BadSink(
            f"{where}: partition_by names a column twice: {partition_by}. {NOTHING_WRITTEN}"
        )
    if len(folders) == len(columns):
        raise BadSink(
            f"{where}: no column remains for the files themselves, as partition columns are kept "
            f"in folder names only. {NOTHING_WRITTEN}"
        )
    for field in schema:
        for reason in _misfits(field, format_):
            raise BadSink(f"{where}: column {field.name!r} {reason}. {NOTHING_WRITTEN}")
        if format_ == "orc" and field.name.lower() not in folders:
            _check_orc_names(where, field, field.name)


def _check_orc_names(where: str, field: pa.Field, column: str) -> None:
    """Refuse names that orc's own library writes but cannot read, however deep they are."""
    if "`" in field.name or not field.name:
        inside = "" if field.name == column else f" holds a field {field.name!r}"
        raise BadSink(
            f"{where}: column {column!r}{inside}: orc cannot read back a name that is empty or has "
            f"a backtick. Rename it, or use parquet. {NOTHING_WRITTEN}"
        )
    if pa.types.is_nested(field.type):
        for child in _children(field.type):
            _check_orc_names(where, child, column)


def check_values(
    where: str,
    schema: pa.Schema,
    format_: str,
    options: Mapping[str, object],
    partition_by: Sequence[str],
) -> None:
    """Refuse options and folders under which values would be lost or changed."""
    for reason in lossy_options(format_, options, schema, partition_by):
        raise BadSink(f"{where}: {reason}. {NOTHING_WRITTEN}")
    kinds = {field.name.lower(): field.type for field in schema}
    for name in partition_by:
        kind = kinds[name.lower()]
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            raise BadSink(
                f"{where}: partition column {name!r} is a timestamp, which folders name in local "
                "time: an hour that a clock goes through twice would become one. Use "
                f"date_format(..., 'yyyy-MM-dd HH:mm:ssXXX') or a date. {NOTHING_WRITTEN}"
            )
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise BadSink(
                f"{where}: partition column {name!r} is binary, which no folder's name can hold: "
                f"use hex(). {NOTHING_WRITTEN}"
            )


def _misfits(field: pa.Field, format_: str) -> Iterator[str]:
    """Why a format cannot hold a column; nothing if it can."""
    kind = field.type
    if pa.types.is_null(kind):
        yield "has type void: cast it to the type that it will have once there are values"
    elif pa.types.is_duration(kind) or pa.types.is_interval(kind):
        yield "is an interval, which readers of files disagree on: cast it to a number"
    elif pa.types.is_time(kind):
        yield "is a time of day, which Spark writes to no format yet: cast it to a string"
    elif format_ == "csv" and pa.types.is_nested(kind):
        yield "is nested, which csv cannot hold: use to_json(), or another format"
    elif format_ == "csv" and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        yield "is binary, which csv cannot give back: use base64(), or another format"
    elif pa.types.is_struct(kind) and kind.num_fields == 0:
        yield "is a struct without fields, which no format can hold: drop it"
    elif format_ == "json" and _is_variant(kind):
        yield "is a variant, whose times, decimals and binary would come back as text: use parquet"
    elif format_ == "json" and pa.types.is_map(kind) and not _is_text(kind.key_type):
        yield "is a map whose keys are not text, which json cannot give back: cast the keys"
    elif format_ == "orc" and _is_variant(kind):
        yield "is a variant, which orc cannot hold: use to_json(), or another format"
    elif pa.types.is_nested(kind):
        for child in _children(kind):
            yield from _misfits(child, format_)


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(index) for index in range(kind.num_fields)]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_variant(kind: pa.DataType) -> bool:
    """Spark marks the struct that a variant becomes in Arrow."""
    return pa.types.is_struct(kind) and any(b"variant" in (f.metadata or {}) for f in kind)


def check_places(where: str, files: FileSystem, target: str, staging: str, checkpoint: str) -> None:
    """Refuse folders that cannot be written, renamed between, or kept apart."""
    if not has_atomic_create(target):
        raise BadSink(
            f"{where}: files are finished by rename, which is not known to be atomic on "
            f"{split_uri(target)[0]}. Use a local disk or HDFS. {NOTHING_WRITTEN}"
        )
    if below(staging, target):
        raise BadSink(
            f"{where}: staging {staging} is inside the target, where readers look. "
            f"{NOTHING_WRITTEN}"
        )
    for one, other in ((checkpoint, target), (target, checkpoint)):
        if below(one, other):
            raise BadSink(
                f"{where}: {one} is inside {other}; checkpoint and target must be apart, so that "
                f"neither's files are taken for the other's. {NOTHING_WRITTEN}"
            )
    nearest = [_nearest(where, files, uri) for uri in (target, staging)]
    for folder in nearest:
        _check_writable(where, files, folder)
    if split_uri(target)[0] != split_uri(staging)[0] or not files.same_volume(*nearest):
        raise BadSink(
            f"{where}: pending files in {staging} cannot be renamed into {target}, which is on "
            "another volume. Give staging= a folder on the target's volume (if the target is a "
            f"mount point: use a folder below it as target). {NOTHING_WRITTEN}"
        )


def _nearest(where: str, files: FileSystem, uri: str) -> str:
    """Return the nearest folder that is there."""
    try:
        while not files.exists(uri) and parent(uri) != uri:
            uri = parent(uri)
    except Exception as error:
        raise BadSink(f"{where}: cannot look at {uri}: {error}. {NOTHING_WRITTEN}") from error
    return uri


def _check_writable(where: str, files: FileSystem, folder: str) -> None:
    """Look, and where one cannot look, try with a hidden folder that goes away at once."""
    scheme, path = split_uri(folder)
    if scheme == "file":
        if not os.path.isdir(path):
            raise BadSink(f"{where}: {folder} is a file, not a folder. {NOTHING_WRITTEN}")
        if not os.access(path, os.W_OK | os.X_OK):
            raise BadSink(f"{where}: this user may not write in {folder}. {NOTHING_WRITTEN}")
        return
    probe = join(folder, f".beadline-probe-{uuid.uuid4().hex}")
    try:
        files.make_folder(probe)
        files.delete(probe)
    except Exception as error:
        raise BadSink(
            f"{where}: cannot make a folder in {folder}: {error}. Is it a file, or are rights "
            f"missing? {NOTHING_WRITTEN}"
        ) from error
