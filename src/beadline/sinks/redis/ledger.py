"""What Redis remembers of a query: how many rows of which epoch it has, and for which sink.

A ledger is a hash with one field per sink of the query, and the field's text is an entry::

    <prefix>beadline:ledger:<query>:head     alone: all there is
                                             in a cluster: has the epoch begun, has it ended?
    <prefix>beadline:ledger:<query>:{<tag>}  in a cluster: the rows of one hash slot

Two more fields per sink are not entries of commits: ``<sink>~opened`` in the head holds the
incarnation that opened the sink here, so that this server can be told from another, and
``<sink>~published`` the newest epoch that was written without a decision, for ``at_least_once``.

An entry counts rows, not chunks, so that a commit that continues after a crash may cut them
differently. The keys begin with the prefix, so that a user who may only touch ``<prefix>*`` can
write them.

A cluster gives every key one of 16,384 slots, by a checksum of the key or of the part between the
first ``{`` and the next ``}``. A script may use keys of one slot only, so each slot that has rows
has a ledger in that very slot, named by a short tag that the checksum leads there.
"""

from __future__ import annotations

import itertools
import re
from binascii import crc_hqx
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from beadline.sink import LedgerRows, QueryId, Seen

MARK = "beadline:ledger:"
CLUSTER_SLOTS = 16384
BEGUN, ENDED = 1, 2  # what a cluster's head counts instead of rows
OPENED, PUBLISHED = "~opened", "~published"  # no sink's name has a ~

_ENTRY = re.compile(r"([0-9a-f]{32}) (\d+) (\S+) (\d+) (\d+)\Z")
_NO_NONCE = "-"


@dataclass(frozen=True)
class Entry:
    """``done`` of ``total`` rows of an epoch have taken effect."""

    incarnation: str
    epoch: int
    nonce: str
    done: int
    total: int

    @property
    def complete(self) -> bool:
        """Whether the whole epoch is there."""
        return self.done >= self.total

    @property
    def seen(self) -> Seen:
        """The entry as the protocol asks for it."""
        return Seen(self.incarnation, self.epoch, self.nonce)

    @classmethod
    def parse(cls, text: bytes | None) -> Entry | None:
        """Read the stored form; None if there is none, ``ValueError`` if it is not ours."""
        if not text:
            return None
        found = _ENTRY.match(text.decode(errors="replace"))
        if found is None:
            raise ValueError("an entry of the ledger cannot be read; another program wrote it")
        incarnation, epoch, nonce, done, total = found.groups()
        nonce = "" if nonce == _NO_NONCE else nonce
        return cls(incarnation, int(epoch), nonce, int(done), int(total))


@dataclass(frozen=True)
class Head:
    """All fields of the ledger that every commit begins with, by sink."""

    entries: dict[str, Entry] = field(default_factory=dict)
    published: dict[str, Entry] = field(default_factory=dict)
    opened: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Mapping[bytes, bytes]) -> Head:
        """Read the stored form; ``ValueError`` if another program wrote in it."""
        head = cls()
        for name, text in texts.items():
            sink, tilde, kind = name.decode().partition("~")
            if tilde + kind == OPENED:
                head.opened[sink] = text.decode()
                continue
            entry = Entry.parse(text)
            if entry is not None:
                (head.published if tilde + kind == PUBLISHED else head.entries)[sink] = entry
        return head

    def rows(self, query: QueryId) -> LedgerRows:
        """Return what is there of a query; what was published counts for its own incarnation."""
        mine = query.incarnation
        published = [(s, entry) for s, entry in self.published.items() if entry.incarnation == mine]
        found = [*self.entries.items(), *published]
        return LedgerRows(query, [(sink, entry.seen) for sink, entry in found])


@dataclass(frozen=True)
class Guard:
    """Whose rows a script writes: what it compares with the ledger before it does.

    ``previous`` is the newest earlier epoch that must be there, whole; -1 if none must.
    """

    sink: str
    incarnation: str
    epoch: int
    nonce: str
    total: int
    previous: int = -1

    def arguments(self, first: int, count: int) -> list[bytes]:
        """Return the script's first arguments: rows ``first`` to ``first + count`` come."""
        texts = (self.sink, self.incarnation, self.epoch, self.nonce or _NO_NONCE)
        return [str(text).encode() for text in (*texts, first, count, self.total, self.previous)]


def pattern(prefix: str, query: str) -> str:
    """Return what all ledger keys of a query look like."""
    return f"{prefix}{MARK}{query}:*"


def head_key(prefix: str, query: str) -> bytes:
    """Return the ledger that every commit begins with."""
    return f"{prefix}{MARK}{query}:head".encode()


def slot_key(prefix: str, query: str, slot: int) -> bytes:
    """Return the ledger that is in this slot; a tag in the prefix decides the slot already."""
    tag = b"slot" if "{" in prefix else b"{%b}" % tags()[slot]
    return f"{prefix}{MARK}{query}:".encode() + tag


def slot_of(key: bytes) -> int:
    """Return a key's slot, as Redis computes it.

    >>> slot_of(b"123456789"), slot_of(b"a{123456789}b")
    (12739, 12739)
    """
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return crc_hqx(key, 0) % CLUSTER_SLOTS


def slots_of(keys: Sequence[bytes]) -> list[int]:
    """Return the slots of many keys."""
    if any(b"{" in key for key in keys):
        return [slot_of(key) for key in keys]
    return [crc_hqx(key, 0) % CLUSTER_SLOTS for key in keys]


@lru_cache(maxsize=1)
def tags() -> tuple[bytes, ...]:
    """Return for every slot the smallest number whose text leads there: the same everywhere."""
    found: dict[int, bytes] = {}
    for number in itertools.count():
        tag = b"%d" % number
        found.setdefault(crc_hqx(tag, 0) % CLUSTER_SLOTS, tag)
        if len(found) == CLUSTER_SLOTS:
            return tuple(found[slot] for slot in range(CLUSTER_SLOTS))
    raise AssertionError("counting does not end")
