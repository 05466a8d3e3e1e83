"""Hash slots: which rows a script may touch together in a Redis cluster.

A cluster gives every key one of 16,384 slots, by a checksum of the key or of what stands between
the first ``{`` and the next ``}``. A script may use keys of one slot only, so each slot that has
rows has a ledger in that very slot, named by a short tag that the checksum leads there.
"""

from __future__ import annotations

import itertools
from binascii import crc_hqx
from collections.abc import Sequence
from functools import lru_cache

SLOTS = 16384


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
    return crc_hqx(key, 0) % SLOTS


def slots_of(keys: Sequence[bytes]) -> list[int]:
    """Return the slots of many keys."""
    if any(b"{" in key for key in keys):
        return [slot_of(key) for key in keys]
    return [crc_hqx(key, 0) % SLOTS for key in keys]


@lru_cache(maxsize=1)
def tags() -> tuple[bytes, ...]:
    """Return for every slot the smallest number whose text leads there: the same everywhere."""
    found: dict[int, bytes] = {}
    for number in itertools.count():
        tag = b"%d" % number
        found.setdefault(crc_hqx(tag, 0) % SLOTS, tag)
        if len(found) == SLOTS:
            return tuple(found[slot] for slot in range(SLOTS))
    raise AssertionError("counting does not end")
