"""Names derived from targets: a sink is named after where it writes, never after its position."""

from __future__ import annotations

import hashlib
import re

from beadline.ids import NAME_LENGTH_MAX

_HASH_DIGITS = 8


def name_from(*words: str) -> str:
    """Return a sink's name derived from words of its target; a hash keeps altered names distinct.

    >>> name_from("shop", "orders")
    'shop-orders'
    >>> name_from("shop", "häuser & höfe")
    'shop-h-user-h-fe-4c46d27c'
    """
    whole = "-".join(words)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", whole).strip("-_.") or "sink"
    if name == whole and len(name) <= NAME_LENGTH_MAX:
        return name
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{name[: NAME_LENGTH_MAX - _HASH_DIGITS - 1]}-{digest}"
