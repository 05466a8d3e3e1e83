"""Chunks written, and what the answers mean: done, continue from elsewhere, or stop.

Several chunks of one ledger are in flight at a time. That is safe, because each takes effect only
if the ledger stands at its first row: if one fails, those behind it change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from beadline.sink import Denied, Rejected, Unavailable
from beadline.sinks.redis.chunks import Chunk
from beadline.sinks.redis.client import RedisClient, is_denied
from beadline.sinks.redis.ledger import Entry, Guard
from beadline.sinks.redis.script import (
    ANOTHER,
    APPLIED,
    BEHIND,
    ELSEWHERE,
    NEWER,
    OTHER,
    REFUSED,
    RedisScript,
    mark_script,
)

_ANSWERS = (APPLIED, ELSEWHERE, REFUSED, NEWER, OTHER, ANOTHER, BEHIND)


class Overtaken(Exception):
    """The ledger is not where this commit could continue; ``entry`` says where it is."""

    def __init__(self, status: bytes, entry: Entry | None) -> None:
        super().__init__(status.decode())
        self.entry = entry


class Behind(Exception):
    """Earlier epochs are missing, so nothing was written; ``entry`` says what is there."""

    def __init__(self, entry: Entry | None) -> None:
        super().__init__("earlier epochs are missing")
        self.entry = entry


class RedisRowRejected(Exception):
    """The server would not take a row; those before it took effect and are counted."""

    def __init__(self, place: tuple[int, int], problem: str) -> None:
        super().__init__(problem)
        self.partition, self.row = place
        self.problem = problem


def mark(client: RedisClient, key: bytes, guard: Guard, first: int) -> None:
    """Advance a ledger without rows of its own by one step; fine if another process has."""
    script = mark_script()
    answer = client.run(script, [(key, script.call(key, guard.arguments(first, 1)))])[0]
    status = _status(answer)
    if status == ELSEWHERE and _done(answer[1], guard) > first:
        return
    if status == BEHIND:
        raise Behind(Entry.parse(answer[1]))
    if status != APPLIED:
        raise Overtaken(status, Entry.parse(answer[1]))


def apply(client: RedisClient, script: RedisScript, guard: Guard, chunks: Sequence[Chunk]) -> None:
    """Write chunks; each row takes effect once, even if another process writes it too."""
    left = list(chunks)
    while left:
        calls = [
            (chunk.ledger, script.call(chunk.ledger, _arguments(guard, chunk), chunk.rows))
            for chunk in left
        ]
        left = _left(left, client.run(script, calls), guard)


def _arguments(guard: Guard, chunk: Chunk) -> list[bytes]:
    return guard.arguments(chunk.first, len(chunk.rows))


def _left(chunks: Sequence[Chunk], answers: Sequence[list[bytes]], guard: Guard) -> list[Chunk]:
    """Return what must be sent again, cut to the rows that are not there yet."""
    again: list[Chunk] = []
    waiting: set[bytes] = set()
    for chunk, answer in zip(chunks, answers, strict=True):
        status = _status(answer)
        if status == REFUSED:
            row = int(answer[1])
            problem = answer[2].decode(errors="replace")
            if is_denied(problem):
                raise Denied(problem)
            raise RedisRowRejected(chunk.rows.places[row], problem)
        if status == BEHIND:
            raise Behind(Entry.parse(answer[1]))
        if status in (NEWER, OTHER, ANOTHER):
            raise Overtaken(status, Entry.parse(answer[1]))
        if status == APPLIED:
            continue
        done = _done(answer[1], guard)
        if done < chunk.first and chunk.ledger not in waiting:
            text = "the ledger moved backwards while rows were written: Redis has restarted"
            raise Unavailable(text, answered=True)
        if done < chunk.end:
            again.append(chunk.after(max(done, chunk.first)))
            waiting.add(chunk.ledger)
    return again


def _status(answer: list[bytes]) -> bytes:
    """Return the first word of an answer; one that is not ours says nothing about the rows."""
    if isinstance(answer, list) and answer and answer[0] in _ANSWERS:
        return answer[0]
    raise Rejected(f"the script answered {answer!r:.200}, which no Beadline script returns")


def _done(entry: bytes, guard: Guard) -> int:
    held = Entry.parse(entry)
    return held.done if held is not None and held.epoch == guard.epoch else 0
