"""Settings of a Spark session for the length of a ``with``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_changing = threading.RLock()  # a start within such a "with" has settings of its own


@contextmanager
def session_settings(session: Any, conf: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session, one thread at a time, and restore them."""
    with _changing:
        before = {key: session.conf.get(key, None) for key in conf}
        try:
            for key, value in conf.items():
                session.conf.set(key, value)
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    session.conf.unset(key)
                else:
                    session.conf.set(key, str(old))
