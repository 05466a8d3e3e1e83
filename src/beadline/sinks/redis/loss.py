"""Has the server less than it acknowledged? And is it the server at all?

What it acknowledged is noted in the staging folder (``notes``). Neither note nor folder knows its
address: a replica that took over has another one, and must be asked the same question. Nor could
an address tell a server from another that was put in its place. What tells it is what it holds.
"""

from __future__ import annotations

from beadline.sinks.redis.ledger import Entry


def lost(newest: int | None, held: Entry | None, opened: bool) -> bool:
    """Whether something is missing: the newest epoch it acknowledged, or that we opened it.

    ``newest`` is what was noted; ``held`` is the ledger's entry, and ``opened`` whether the mark
    of ``RedisSink.open`` is there.
    """
    if newest is None:
        return False
    if held is None:
        return newest >= 0 or not opened
    return newest > held.epoch or (newest == held.epoch and not held.complete)


def loss(where: str, newest: int | None, held: Entry | None) -> str:
    """Say that the server has less than it once acknowledged."""
    none = newest is None or newest < 0
    did = "was opened for this query" if none else f"has acknowledged epoch {newest}"
    has = f"epoch {held.epoch}" if held else "nothing of this query"
    if held is not None and not held.complete:
        has += " in part"
    return (
        f"{where} {did} and now holds {has}: it lost what it had acknowledged (restarted without "
        "its log, flushed, restored from an old backup, or a replica took over that had not got "
        "it), or it is another server. Restore it, or give the address of the right one; or start "
        "over, with the target emptied and a new checkpoint; or take the loss with "
        "on_loss='go on', until the next epoch is there. Nothing was written."
    )
