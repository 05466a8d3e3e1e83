"""Where the server is: one URL, taken apart, whose password shows nowhere.

A URL that cannot be read is never repeated in the error: it holds the password.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from beadline.errors import BadSink

PORT = 3306
_FORM = "mysql://user:password@host:3306/database"
_TLS = ("ssl_ca", "ssl_cert", "ssl_key")
_YES = {"true": True, "1": True, "false": False, "0": False}
_SWITCHES = ("ssl_verify_cert", "ssl_verify_identity")
_HIDDEN = "***"


@dataclass(frozen=True)
class Address:
    """A server, who we are there, and the database."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, dsn: str) -> Address:
        """Read ``mysql://user:password@host:port/database``, percent-encoded like any URL."""
        try:
            url = urlsplit(dsn)
            port = url.port or PORT
        except ValueError:
            raise _bad("it is no URL; percent-encode odd characters in it") from None
        if url.scheme not in ("mysql", "mariadb"):
            raise _bad("it does not begin with mysql://")
        if not url.hostname or not url.username:
            raise _bad("host or user is missing")
        database = unquote(url.path.lstrip("/"))
        if not database or "/" in url.path.lstrip("/"):
            raise _bad("the name of the database is missing")
        options = tuple(_option(name, value) for name, value in parse_qsl(url.query))
        password = unquote(url.password or "")
        return cls(url.hostname, port, unquote(url.username), password, database, options)

    @property
    def place(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"

    def redacted(self, text: str) -> str:
        """The text without the password, should a library have put it there."""
        return text.replace(self.password, _HIDDEN) if self.password else text


def _option(name: str, value: str) -> tuple[str, Any]:
    if name in _TLS:
        return name, value
    if name in _SWITCHES and value.lower() in _YES:
        return name, _YES[value.lower()]
    known = ", ".join((*_TLS, *_SWITCHES))
    raise _bad(f"option {name!r} is not one of {known}, or has no value that fits")


def _bad(why: str) -> BadSink:
    return BadSink(f"The address of the MySQL server must be {_FORM}: {why}. Nothing was written.")
