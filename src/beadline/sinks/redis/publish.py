"""Rows written at once, for ``at_least_once``: the same script, guarded against late ones only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from beadline.sink import PartId, PrepareFailed, Rejected, Retries, Unavailable, running, verdict
from beadline.sinks.redis import chunks, ledger
from beadline.sinks.redis.apply import Overtaken, RedisRowRejected, apply
from beadline.sinks.redis.client import RedisClient
from beadline.sinks.redis.columns import Layout
from beadline.sinks.redis.ledger import Guard
from beadline.sinks.redis.script import RedisScript, ScriptRows, rows_of, script_for

if TYPE_CHECKING:
    import pyarrow as pa


def publish(
    connect: Callable[[], AbstractContextManager[RedisClient]],
    layout: Layout,
    batch: pa.RecordBatch,
    part: PartId,
    first: int,
    where: str,
    timeout_s: float,
) -> None:
    """Write a batch, unless a newer epoch is there; while Redis is away, wait for it.

    ``first`` is the number of its first row in the part, of those that were not refused.
    After a lost connection the whole batch is written again: that is what at-least-once means. An
    attempt that wakes up after a newer epoch was written would leave old values there for good, so
    it fails.
    """
    script = script_for(layout, layout.fields(batch.schema.names), guarded=False)
    rows = rows_of(batch, layout, part.partition, first)
    what = f"query {part.query!r}, epoch {part.epoch}, part {part.partition}: {where}"
    retries = Retries(running(timeout_s))
    while True:
        try:
            with connect() as client:
                _write(client, script, layout, rows, part)
            return
        except RedisRowRejected as rejected:
            raise PrepareFailed(
                f"{what} rejects {layout.command} of row {rejected.row} (the first is 0, refused "
                f"ones not counted): {rejected.problem}. Rows before it are written, and will be "
                "again. Repair or delete the row's key."
            ) from None
        except Overtaken as late:
            newest = "a newer epoch" if late.entry is None else f"epoch {late.entry.epoch}"
            raise PrepareFailed(
                f"{what} has {newest} of this query already, so these rows are late and were not "
                "written: the attempt was superseded long ago. If this is a new start, its "
                "checkpoint is older than what Redis holds: restore the newest one, or start over."
            ) from None
        except Rejected as error:
            raise PrepareFailed(f"{what} rejects it: {error}. The epoch is redelivered.") from None
        except Unavailable as error:
            if not retries.again(verdict(error)):
                raise PrepareFailed(
                    f"{what} did not respond for {timeout_s:g} s (timeout_s): {error}. The epoch "
                    "is redelivered."
                ) from None


def _write(
    client: RedisClient, script: RedisScript, layout: Layout, rows: ScriptRows, part: PartId
) -> None:
    guard = Guard(part.sink, part.incarnation, part.epoch, "", 0)
    if client.cluster:
        found = chunks.by_slot(iter((rows,)), layout.prefix, part.query)
    else:
        head = ledger.head_key(layout.prefix, part.query)
        found = chunks.in_order(iter((rows,)), head, 0)
    for some in found:
        apply(client, script, guard, some)
