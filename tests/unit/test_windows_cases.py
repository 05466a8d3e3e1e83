"""Windows in memory, in cases that random rows do not find."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from beadline.event_time import count
from beadline.event_time.windows import Windowed, WindowShape
from tests.unit.event_time_state import EpochRunner

SECOND = 1_000_000


def test_decimal_keys_that_differ_in_their_last_of_38_digits_are_two() -> None:
    schema = pa.schema([("k", pa.decimal128(38, 0)), ("ts", pa.timestamp("us", tz="UTC"))])
    shape = WindowShape(10 * SECOND, 10 * SECOND)
    operator = Windowed(
        time="ts", shape=shape, by=("k",), aggregates={"rows": count()}, schema=schema,
        lateness_us=SECOND,
    )  # fmt: skip
    keys = [Decimal(10**37 + last) for last in range(2)]
    runner = EpochRunner(operator, schema, time="ts")
    for key in keys:
        runner.epoch([{"k": key, "ts": SECOND}])
    told = runner.advance(20_000)["main"]
    assert sorted((row["k"], row["rows"]) for row in told) == [(key, 1) for key in keys]
