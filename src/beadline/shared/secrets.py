"""Redaction: how passwords and tokens are kept out of logs and errors.

A client library puts an address, an option or an echoed header into its errors. Each caller knows
which of its own settings are secret; settings that a user passes through are recognised by their
names, with ``SECRET_NAME``. Finding secrets in a text, even where a library has escaped them, is
the same everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN = "***"
NOT_SHOWN = "(not shown)"  # in the place of a row's values in what a server said
# In the name of a setting of Spark, Hadoop, Java or librdkafka: its value is secret.
SECRET_NAME = re.compile(
    r"password|passwd|\bpwd\b|passphrase|secret|token|credential|jaas|bearer|pem$"
    r"|(access|private|account|api|master)[._-]?key|[.]key\b|[.]sas[.]|user[.]info\b",
    re.IGNORECASE,
)


def redacted(text: str, secrets: Iterable[str] | Mapping[str, str]) -> str:
    """Return the text without these secrets, whether plain or as URLs, JSON and repr write them.

    A mapping says what to put in the place of each secret.

    >>> redacted("no such user: ann:p%40ss", ["p@ss"])
    'no such user: ann:***'
    >>> redacted("no such user: ann:p%40ss", {"p@ss": "${PASSWORD}"})
    'no such user: ann:${PASSWORD}'
    """
    if not isinstance(secrets, Mapping):
        secrets = dict.fromkeys(secrets, HIDDEN)
    shown = {form: secrets[secret] for secret in secrets if secret for form in _forms(secret)}
    for form in sorted(shown, key=len, reverse=True):  # one may be a part of another
        text = text.replace(form, shown[form])
    return text


def _forms(secret: str) -> set[str]:
    escaped = {repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret, ""), quote_plus(secret)}
    return {secret, unquote(secret), unquote_plus(secret), *escaped} - {""}
