"""The two records of the log, versioned and checksummed.

A record is a header line and a JSON body. The header names the format's version, the slot that
the record was written for and the body's SHA-256, so that a torn, edited or swapped file is
noticed; the body is human-readable. Secrets never get here: sinks are recorded by target, and parts
by their committables.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from beadline.errors import CorruptRecord
from beadline.ids import PartId, QueryId

VERSION = 7
# 1 had no histories, sources and previous; 2 no words; 4 no event_time. The versions between were
# skipped: one flipped bit makes them others.
READABLE = (1, 2, 4, 7)
_HEADER = "beadline-record"


@dataclass(frozen=True)
class Pointer:
    """Another record of the log: its slot, and the nonce that it must have."""

    slot: int
    nonce: str


@dataclass(frozen=True)
class StoredPart:
    """A prepared part as the log keeps it; query, sink and epoch are the decision's."""

    partition: int
    attempt: int
    generation: int
    rows: int
    checksum: int | None
    committable: dict[str, Any]


@dataclass(frozen=True)
class SinkHistory:
    """What the log knows of one sink at one target; kept after the sink is removed from the query.

    ``instance`` is the thing at the target (``Capabilities``). ``since`` is the first epoch whose
    rows it was given. ``holds`` is the newest finished epoch with rows that it must show, -1 for
    none. ``until`` is the newest epoch before it was removed, None while it is part of the query.
    ``missing`` are spans of epochs, first and last, that it lacks.
    """

    name: str
    target: str
    instance: str = ""
    since: int = 0
    holds: int = -1
    until: int | None = None
    missing: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Claim:
    """One start of the query. A newer claim fences every older one.

    ``base`` is the last epoch that Spark had committed at that time, -1 for none. ``decided``
    points to the newest decision before it. ``sinks`` maps names to targets. ``published`` is the
    newest epoch that an at-least-once start may have shown without a decision, -1 for none.
    ``dropped`` names the sinks whose rows of the newest decision are given up. ``sources`` maps
    what is read to its instance (a topic to its id). ``words`` are the sinks that ``drop=`` named:
    a name that stays in the code gives up nothing more.
    """

    nonce: str
    query: QueryId
    generation: int
    mode: str
    base: int
    sinks: dict[str, str]
    decided: Pointer | None
    at_ms: int
    host: str = ""
    pid: int = 0
    dropped: tuple[str, ...] = ()
    published: int = -1
    histories: tuple[SinkHistory, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """One epoch made certain, all sinks together.

    ``claim`` points to the claim under which it was made, ``decided`` to the decision before it.
    ``offsets`` is the digest of Spark's own ``offsets/<epoch>``. ``replays`` counts how often lost
    parts were replaced. ``finished_at_ms`` says when the decision before it had been committed.
    ``previous`` is, by sink, the newest earlier epoch with rows that it must hold (rule 25).
    ``sources`` are those that the claim did not know yet. ``kinds`` names, by sink, the class of
    its committables, so that another kind of sink under the same name is told from the old one.
    ``event_time`` is for people: the epoch's watermark, its late rows, and what each input
    contributed; empty for a query without watermarks.
    """

    nonce: str
    generation: int
    epoch: int
    offsets: str
    parts: int
    settings: dict[str, str]
    sinks: dict[str, tuple[StoredPart, ...]]
    claim: Pointer
    decided: Pointer | None
    started_at_ms: int
    prepared_at_ms: int
    at_ms: int
    finished_at_ms: int | None = None
    replays: int = 0
    previous: dict[str, int] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    event_time: dict[str, Any] = field(default_factory=dict)

    def part_id(self, query: QueryId, sink: str, part: StoredPart) -> PartId:
        """Return the whole id of a stored part."""
        return PartId(
            query.name,
            query.incarnation,
            sink,
            part.generation,
            self.epoch,
            part.partition,
            part.attempt,
        )

    def is_of_kind(self, sink: str, kind: str) -> bool:
        """Whether a sink's parts are committables of this class; version 1 did not say."""
        return self.kinds.get(sink, kind) == kind

    def part_ids(self, query: QueryId) -> list[PartId]:
        """Return the ids of all of its parts, of every sink."""
        return [self.part_id(query, name, p) for name, parts in self.sinks.items() for p in parts]


Record = Claim | Decision


def encode(record: Record, slot: int) -> bytes:
    """Return the record as bytes for its slot."""
    kind = "claim" if isinstance(record, Claim) else "decision"
    # One field per line for people; json's own indentation would take ten times as long.
    lines = [f'"{name}": {_dumps(v)}' for name, v in ({"kind": kind} | vars(record)).items()]
    body = ("{\n" + ",\n".join(lines) + "\n}").encode()
    digest = hashlib.sha256(body).hexdigest()
    header = f"{_HEADER} version={VERSION} slot={slot} sha256={digest}\n"
    return header.encode() + body + b"\n"


def _dumps(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=vars)


def decode(data: bytes, path: str, slot: int) -> Record:
    """Read a record of this or an older version; ``path`` is named if it cannot be done."""
    header, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    words = header.decode("ascii", "replace").split(" ")
    if len(words) != 4 or words[0] != _HEADER:
        raise _corrupt(path, f"it is not a record of Beadline ({len(data)} bytes)")
    version = words[1].removeprefix("version=")
    if version not in map(str, READABLE):
        raise _corrupt(path, f"its version {version} is newer than this Beadline reads ({VERSION})")
    if words[2] != f"slot={slot}":
        raise _corrupt(path, f"it was written as {words[2]}, not for this place")
    if words[3].removeprefix("sha256=") != hashlib.sha256(body).hexdigest():
        raise _corrupt(path, "its checksum does not match its content")
    try:
        return _build(json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(path, f"its content cannot be parsed: {error!r}") from error


def _build(fields: dict[str, Any]) -> Record:
    kind = fields.pop("kind")
    decided = fields.pop("decided")
    pointer = Pointer(**decided) if decided else None
    if kind == "claim":
        query = QueryId(**fields.pop("query"))
        dropped, words = (tuple(fields.pop(name, ())) for name in ("dropped", "words"))
        histories = tuple(
            SinkHistory(**{**one, "missing": tuple(map(tuple, one["missing"]))})
            for one in fields.pop("histories", ())
        )
        fields |= {"dropped": dropped, "histories": histories, "words": words}
        return Claim(query=query, decided=pointer, **fields)
    if kind == "decision":
        claim = Pointer(**fields.pop("claim"))
        sinks = {
            name: tuple(StoredPart(**part) for part in parts)
            for name, parts in fields.pop("sinks").items()
        }
        return Decision(claim=claim, decided=pointer, sinks=sinks, **fields)
    raise ValueError(f"unknown kind {kind!r}")


def _corrupt(path: str, why: str) -> CorruptRecord:
    return CorruptRecord(
        f"record {path} of the decision log cannot be used: {why}. Whether its epoch was decided "
        "cannot be known without it, so nothing was started, committed or aborted. Restore the "
        "file from a backup of the checkpoint, or use a Beadline version that can read it."
    )
