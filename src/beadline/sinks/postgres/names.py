"""SQL's names and texts, quoted: whatever is in them, they stay one name or one text."""

from __future__ import annotations

from collections.abc import Iterable

NAME_BYTES_MAX = 63  # PostgreSQL cuts longer ones off, in silence


def quoted(*names: str) -> str:
    """Return an identifier, with its schema before it if two are given.

    >>> quoted("shop", '5" nails')
    '"shop"."5"" nails"'
    """
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def listed(names: Iterable[str], before: str = "") -> str:
    """Return identifiers as a list, each with ``before`` in front.

    >>> listed(["a", "b"], "s.")
    's."a", s."b"'
    """
    return ", ".join(f"{before}{quoted(name)}" for name in names)


def literal(text: str) -> str:
    """Return a text as SQL holds it; backslashes are plain, as the standard says.

    >>> literal("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"
