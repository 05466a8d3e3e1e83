"""What text formats need so that every value comes back: options, refusals, a look at the rows.

Spark's own defaults lose values: csv cuts blanks, cannot tell null from empty text, and leaves out
a line that would be empty; csv and json cut times to milliseconds. Here the defaults are such that
the file holds every value, options under which it would not are refused with the reason, and values
that no option can save (text that is not UTF-8) are found as the rows pass, before the decision.

csv is written as RFC 4180 has it: quotes are doubled, null is nothing and empty text is ``""``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

TEXT_FORMATS = ("json", "csv")
# Five X: before 1900 many zones were minutes *and seconds* from UTC.
_TIMES = {
    "timestampformat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampntzformat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_BLANKS = {"ignoreleadingwhitespace": "false", "ignoretrailingwhitespace": "false"}
# What a reader of Spark's takes for null has to be some text: one that no value is likely to be. In
# the file null is an empty field, and empty text is "".
NULL_IN_READER = "\0null\0"
_TIMES_READ = ("dateformat", "timestampformat", "timestampntzformat", "timezone", "locale")
_READ = {"json": _TIMES_READ, "csv": ("header", "sep", "delimiter", "quote", *_TIMES_READ)}
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_LIKE_A_NUMBER = re.compile(r"[-+.]?[0-9]|[-+]?(nan|inf)|true$|false$", re.IGNORECASE)


def folded(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as Spark's writer takes them: names and booleans in small letters."""
    return {key.lower(): _text(value) for key, value in options.items()}


def write_options(format_: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the user's options over those that keep every value."""
    given = folded(options)
    if format_ == "json":
        return {**_TIMES, **given}
    if format_ == "csv":
        quote = given.get("quote", '"')
        null = {"nullvalue": "", "emptyvalue": '""'}
        return {**_TIMES, **_BLANKS, **null, **given, "escape": quote}
    return given


def read_options(format_: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options with which Spark reads the same values back."""
    wanted = _READ.get(format_, ())
    given = {key: value for key, value in folded(options).items() if key in wanted}
    if format_ == "csv":
        null = folded(options).get("nullvalue") or NULL_IN_READER
        quote = given.get("quote", '"')
        given |= {"quote": quote, "escape": quote, "nullValue": null}
        given |= {"multiLine": "true", "lineSep": "\n"}
    return given


def lossy_options(
    format_: str, options: Mapping[str, Any], schema: pa.Schema, partition_by: Sequence[str]
) -> Iterator[str]:
    """Say which options would lose or change values of these rows, and what to do instead."""
    if format_ not in TEXT_FORMATS:
        return
    given = folded(options)
    for key in ("encoding", "charset"):
        if given.get(key, "utf-8").lower() not in ("utf-8", "utf8"):
            yield f"option {key!r} must be UTF-8: other encodings do not hold every text"
    if given.get("linesep", "\n") != "\n":
        yield "option 'lineSep' must be a newline, or rows could not be told apart or counted"
    if given.get("pretty", "false") == "true":
        yield "option 'pretty' writes a row as several lines, which readers take for several rows"
    yield from _lossy_times(given, schema)
    if format_ == "csv":
        folders = {name.lower() for name in partition_by}
        fields = [field for field in schema if field.name.lower() not in folders]
        yield from _lossy_csv(given, fields)


def _lossy_csv(given: Mapping[str, str], fields: Sequence[pa.Field]) -> Iterator[str]:
    quote = given.get("quote", '"')
    sep = given.get("sep", given.get("delimiter", ","))
    for key in ("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace"):
        if given.get(key.lower(), "false") == "true":
            yield f"option {key!r} cuts blanks off values: leave it out"
    if len(quote) != 1 or quote in "\0\r\n":
        yield f"option 'quote' is {quote!r}: without one, a newline in a value begins a row"
    if given.get("escape", quote) != quote or "chartoescapequoteescaping" in given:
        yield "option 'escape' must be the quote character itself (RFC 4180), as the sink sets it"
    if given.get("escapequotes", "true") == "false":
        yield "option 'escapeQuotes' must not be false: a value with a quote would change"
    if len(sep) != 1 or sep in f"{quote}\r\n\0":
        yield f"option 'sep' is {sep!r}: it must be one character, and neither quote nor newline"
    if given.get("comment", "\0") != "\0":
        yield "option 'comment' would turn rows into comments: leave it out"
    if given.get("emptyvalue", '""') != '""':
        yield "option 'emptyValue' would make empty text look like another value: leave it out"
    yield from _lossy_null(given, fields, f"{quote}{sep}")


def _lossy_null(
    given: Mapping[str, str], fields: Sequence[pa.Field], special: str
) -> Iterator[str]:
    null = given.get("nullvalue", "")
    if null != null.strip() or {*null} & {*special, "\r", "\n"}:
        yield f"option 'nullValue' is {null!r}: it must be plain text, without blanks around it"
    if _LIKE_A_NUMBER.match(null) and not all(_is_text(field.type) for field in fields):
        yield f"option 'nullValue' is {null!r}, which a number or a boolean may be written as"
    nullable = [field.name for field in fields if field.nullable]
    what = 'set options={"nullValue": "\\\\N"} (or other text that no value has)'
    if not null and nullable and given.get("quoteall", "false") == "true":
        yield f"with 'quoteAll', null and empty text are both written as \"\": {what}"
    if not null and len(fields) == 1 and nullable:
        yield (
            f"only column {fields[0].name!r} is left in the files, and Spark's csv writer leaves "
            f"out a line that would be empty, so that nulls would be lost: {what}, add a column, "
            "or use another format"
        )


def _lossy_times(given: Mapping[str, str], schema: pa.Schema) -> Iterator[str]:
    """Say which formats of dates and times leave something out, for the types that are there."""
    types = [*_leaves(schema)]
    moments = [kind for kind in types if pa.types.is_timestamp(kind)]
    wanted = (
        ("dateFormat", any(map(pa.types.is_date, types)), "date", False),
        ("timestampFormat", any(kind.tz for kind in moments), "time", True),
        ("timestampNTZFormat", any(not kind.tz for kind in moments), "time", False),
    )
    for key, used, what, zone in wanted:
        pattern = given.get(key.lower())
        if used and pattern is not None:
            missing = missing_in(pattern, what, zone, given.get("timezone", ""))
            if missing:
                yield f"option {key!r}, {pattern!r}, leaves out {missing}"


def missing_in(pattern: str, what: str, zone: bool, time_zone: str) -> str:
    """Say what of a date or time a pattern of Spark's does not write; empty if nothing.

    >>> missing_in("yyyy-MM-dd HH:mm:ss", "time", False, "")
    'microseconds (SSSSSS)'
    """
    runs = Counter(run[0] for run in _runs(pattern))
    longest = {letter: max(len(r) for r in _runs(pattern) if r[0] == letter) for letter in runs}
    has = longest.get
    if not has("y", 0) or longest["y"] == 2:
        return "the whole year (yyyy)"
    needed = [("M", "L", "the month (MM)"), ("d", "D", "the day (dd)")]
    if what == "time":
        twelve = "h" if has("a") else "H"
        needed += [("H", twelve, "the hour (HH)"), ("m", "m", "minutes (mm)")]
        needed += [("s", "s", "seconds (ss)")]
    for one, other, name in needed:
        if not has(one) and not has(other):
            return name
    if what == "time" and has("S", 0) < 6:
        return "microseconds (SSSSSS)"
    seconds = max(has("X", 0), has("x", 0), has("Z", 0)) >= 4
    fixed = re.match(r"(UTC|Z|GMT)$|[-+]\d\d:\d\d$", time_zone) and (has("X") or has("x"))
    if zone and not (seconds or fixed):
        return "the offset from UTC to the second (XXXXX; or XXX with timeZone=UTC)"
    return ""


def _runs(pattern: str) -> list[str]:
    """The letters of a pattern that stand for something, in runs; quoted text does not."""
    plain = re.sub(r"'[^']*'", " ", pattern)
    return [match[0] for match in re.finditer(r"([A-Za-z])\1*", plain)]


def _leaves(schema: pa.Schema | pa.StructType) -> Iterator[pa.DataType]:
    for index in range(len(schema) if isinstance(schema, pa.Schema) else schema.num_fields):
        kind = schema.field(index).type
        if pa.types.is_map(kind):
            yield from _leaves(pa.struct([kind.key_field, kind.item_field]))
        elif pa.types.is_nested(kind):
            yield from _leaves(kind if pa.types.is_struct(kind) else pa.struct([kind.field(0)]))
        else:
            yield kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def unkept(
    schema: StructType, format_: str, options: Mapping[str, Any], partition_by: Sequence[str]
) -> Column | None:
    """Return, for each row, why a value of it would not come back; null where all would.

    None if rows of this schema cannot hold such a value.
    """
    from pyspark.sql import functions as F

    folders = {name.lower() for name in partition_by}
    null = folded(options).get("nullvalue", "") if format_ == "csv" else ""
    found: Column | None = None
    for field in schema.fields:
        column = F.col(quoted(field.name))
        for bad, why in _suspects(column, field, field.name.lower() in folders, format_, null):
            reason = F.lit(f"column {field.name!r} {why}")
            found = F.when(bad, reason) if found is None else found.when(bad, reason)
    return found


def _suspects(
    column: Column, field: Any, folder: bool, format_: str, null: str
) -> Iterator[tuple[Column, str]]:
    from pyspark.sql.types import StringType

    text = isinstance(field.dataType, StringType)
    if folder and text:
        why = "holds empty text, which names the same folder as null"
        yield column == "", f"{why}; write null, or another text"
        yield column == _NULL_FOLDER, f"holds {_NULL_FOLDER!r}, which names the folder of null"
    if folder or format_ in TEXT_FORMATS:
        invalid = _not_utf8(column, field.dataType)
        if invalid is not None:
            where = "a folder's name" if folder else format_
            yield invalid, f"holds bytes that are not UTF-8, which {where} cannot keep"
    if null and text and not folder:
        yield column == null, f"holds {null!r}, which option nullValue says is null"


def _not_utf8(column: Column, kind: DataType) -> Column | None:
    """Whether any text in a value, however deep, is not UTF-8; None if there is no text in it."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(kind, StringType):
        return ~F.is_valid_utf8(column)
    if isinstance(kind, ArrayType):
        return _any(column, kind.elementType)
    if isinstance(kind, MapType):
        inside = [
            _any(F.map_keys(column), kind.keyType),
            _any(F.map_values(column), kind.valueType),
        ]
    elif isinstance(kind, StructType):
        inside = [_not_utf8(column.getField(f.name), f.dataType) for f in kind.fields]
    else:
        return None
    found: Column | None = None
    for one in inside:
        if one is not None:
            found = one if found is None else found | one
    return found


def _any(column: Column, kind: DataType) -> Column | None:
    from pyspark.sql import functions as F

    if _not_utf8(column, kind) is None:
        return None
    return F.exists(column, lambda item: _certain(_not_utf8(item, kind)))


def _certain(found: Column | None) -> Column:
    from pyspark.sql import functions as F

    assert found is not None
    return F.coalesce(found, F.lit(False))


def newlines(schema: StructType, partition_by: Sequence[str]) -> Column:
    """Return how many newlines the values of a row put into a csv file."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    folders = {name.lower() for name in partition_by}
    found = F.lit(0)
    for field in schema.fields:
        if isinstance(field.dataType, StringType) and field.name.lower() not in folders:
            column = F.col(quoted(field.name))
            without = F.octet_length(F.replace(column, F.lit("\n"), F.lit("")))
            found = found + F.coalesce(F.octet_length(column) - without, F.lit(0))
    return found


def quoted(name: str) -> str:
    """Return a column's name as Spark takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
