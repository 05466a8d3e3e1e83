"""The options of text formats under which every value comes back, and those that are refused.

Spark's own defaults lose values: csv cuts blanks, cannot tell null from empty text, and leaves out
a line that would be empty; csv and json cut times to milliseconds. Here the defaults are such that
the file holds every value, and options under which it would not are refused with the reason. What
no option can save is found as the rows pass (``values``).

csv is written as RFC 4180 has it: quotes are doubled, null is nothing and empty text is ``""``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from beadline.shared.options import option_text

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
# A column of the name that this option has by itself would be filled by the reader.
CORRUPT_IN_READER = "\0corrupt\0"
_TIMES_READ = ("dateformat", "timestampformat", "timestampntzformat", "timezone", "locale")
_READ = {"json": _TIMES_READ, "csv": ("header", "sep", "delimiter", "quote", *_TIMES_READ)}
_LIKE_A_NUMBER = re.compile(r"[-+.]?[0-9]|[-+]?(nan|inf)|true$|false$", re.IGNORECASE)


def folded(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as Spark's writer takes them: names and booleans in lower case."""
    return {key.lower(): option_text(value) for key, value in options.items()}


def write_options(format_: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the user's options over those that keep every value."""
    given = folded(options)
    if format_ == "json":
        return {**_TIMES, **given}
    if format_ == "csv":
        quote = given.get("quote", '"')
        null = {"nullvalue": "", "emptyvalue": quote * 2}
        return {**_TIMES, **_BLANKS, **null, "escape": quote, **given}
    return given


def read_options(format_: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options with which Spark reads the same values back."""
    wanted = _READ.get(format_, ())
    given = {key: value for key, value in folded(options).items() if key in wanted}
    if format_ in TEXT_FORMATS:
        given["columnNameOfCorruptRecord"] = CORRUPT_IN_READER
    if format_ == "csv":
        null = folded(options).get("nullvalue") or NULL_IN_READER
        quote = given.get("quote", '"')
        escape = folded(options).get("escape", quote)
        given |= {"quote": quote, "escape": escape, "nullValue": null}
        given |= {"multiLine": "true", "lineSep": "\n"}
        if escape == quote:  # or the reader drops a NUL out of a value with quotes
            given["charToEscapeQuoteEscaping"] = quote
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
    if given.get("escape", quote) not in (quote, "\\") or "chartoescapequoteescaping" in given:
        yield "option 'escape' must be the quote character (RFC 4180, the default) or a backslash"
    if given.get("escapequotes", "true") == "false":
        yield "option 'escapeQuotes' must not be false: a value with a quote would change"
    if len(sep) != 1 or sep in f"{quote}\\\r\n\0":
        yield f"option 'sep' is {sep!r}: it must be one character, not quote, backslash or newline"
    if given.get("comment", "\0") != "\0":
        yield "option 'comment' would turn rows into comments: leave it out"
    if given.get("emptyvalue", quote * 2) != quote * 2:
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
