"""Rows of every type that files can hold: values that are known for trouble, and any others."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

TEXTS = [
    "",
    " ",
    " a ",
    "\t",
    "\n",
    "\r",
    "\r\n",
    "a\nb",
    "a\r",
    '"',
    '""',
    'a"b',
    '"a"',
    "\\",
    '\\"',
]
TEXTS += [
    "a\\",
    "\\N",
    "\\n",
    ",",
    '","',
    "#x",
    "\0",
    "\0a",
    "é",
    "😀",
    "\u2028",
    "\x85",
    "\ufeffa",
]
TEXTS += ["null", "NaN", "1e5", "007", "true", "'", "{}", "[]", '\\\\"', "\u00a0x\u00a0"]
LETTERS = " \t\n\r\",\\#\0aZ09é😀\u2028\x85;|'{}[]:"
# Values as literals, by type; None is added to each.
FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)
TYPES = {
    "s": "string",
    "b": "boolean",
    "y": "tinyint",
    "h": "smallint",
    "i": "int",
    "l": "bigint",
    "f": "float",
    "d": "double",
    "n": "decimal(38,18)",
    "m": "decimal(5,0)",
    "t": "date",
    "z": "timestamp_ntz",
}
NESTED = {
    "x": "binary",
    "a": "array<string>",
    "q": "struct<p: string, r: struct<u: double>>",
    "k": "map<string, struct<v: timestamp_ntz>>",
}


def some(rng: random.Random, kind: str) -> Any:
    """A value of a type: one that is known for trouble, or any."""
    if kind == "string":
        if rng.random() < 0.5:
            return rng.choice(TEXTS)
        return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(8)))
    bits = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
    if kind in bits:
        top = 2 ** bits[kind]
        return rng.choice([0, -1, top - 1, -top, rng.randrange(-top, top)])
    if kind in ("float", "double"):
        special = ["nan", "inf", "-inf", "-0.0", "1e-45" if kind == "float" else "5e-324", "0.1"]
        value = float(rng.choice([*special, repr(rng.uniform(-1e30, 1e30))]))
        return pa.scalar(value, pa.float32()).as_py() if kind == "float" else value
    if kind.startswith("decimal"):
        digits, scale = map(int, kind[8:-1].split(","))
        number = rng.choice([0, 1, 10**digits - 1, rng.randrange(10**digits)])
        return Decimal(f"{rng.choice([number, -number])}E-{scale}")
    if kind == "date":
        known = ["0001-01-01", "1582-10-04", "1899-12-31", "1970-01-01", "9999-12-31"]
        return date.fromisoformat(rng.choice(known))
    if kind == "timestamp_ntz":  # the last second before 1970 is not for orc, see below
        span = (LAST - FIRST) // timedelta(microseconds=1)
        moment = FIRST + timedelta(microseconds=rng.randrange(span))
        return rng.choice([FIRST, LAST, datetime(1969, 12, 31, 23, 59, 58, 999_999), moment])
    assert kind == "boolean"
    return rng.random() < 0.5


def perhaps(rng: random.Random, value: Any) -> Any:
    return None if rng.random() < 0.2 else value


def deep(rng: random.Random) -> dict[str, Any]:
    """Values of the nested types."""
    inner = perhaps(rng, {"u": perhaps(rng, some(rng, "double"))})
    struct = {"p": perhaps(rng, some(rng, "string")), "r": inner}
    texts = [perhaps(rng, some(rng, "string")) for _ in range(rng.randrange(3))]
    moments = {some(rng, "string"): perhaps(rng, {"v": some(rng, "timestamp_ntz")}) for _ in "ab"}
    return {
        "x": perhaps(rng, rng.randbytes(rng.randrange(5))),
        "a": perhaps(rng, texts),
        "q": perhaps(rng, struct),
        "k": perhaps(rng, moments),
    }


def random_frame(spark: SparkSession, rng: random.Random, nested: bool, rows: int) -> DataFrame:
    """Rows of every type, the same moment also as a timestamp of the session's zone."""
    types = {**TYPES, **(NESTED if nested else {})}
    table = []
    for number in range(rows):
        values = {name: perhaps(rng, some(rng, kind)) for name, kind in TYPES.items()}
        row = {**values, **(deep(rng) if nested else {})}
        table.append((*(row[name] for name in types), number))
    fields = ", ".join(f"{name}: {kind}" for name, kind in types.items())
    frame = spark.createDataFrame(table, f"{fields}, id: int")
    # A moment, not a wall clock: made from UTC, so that no session's zone bends it.
    return frame.selectExpr("*", "to_timestamp(concat(cast(z AS string), 'Z')) AS w").coalesce(2)
