"""Secrets out of texts: the one place that says how a password is kept out of what people read.

A client library puts an address, an option or an echoed header into its errors. Each sink knows
which of its settings are secret; how they are found in a text, also where a library has escaped
them, is the same everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN = "***"


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return the text without these secrets, as they are and as URLs, JSON and repr write them.

    >>> redacted("no such user: ann:p%40ss", ["p@ss"])
    'no such user: ann:***'
    """
    forms = {form for secret in secrets if secret for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):  # one may be a part of another
        text = text.replace(form, HIDDEN)
    return text


def _forms(secret: str) -> set[str]:
    escaped = {repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret, ""), quote_plus(secret)}
    return {secret, unquote(secret), unquote_plus(secret), *escaped} - {""}
