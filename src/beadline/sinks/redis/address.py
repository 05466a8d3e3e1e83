"""The URL of a server: what of it may be shown, and which of its options are taken.

Only options that leave the answers as they are: one that turned them into text, say, would make
every comparison with what the server answered come out wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from beadline.errors import BadSink
from beadline.sinks.shared.secrets import redacted

_SCHEMES = ("redis", "rediss", "unix")
_OPTIONS = ("db", "username", "password", "client_name", "health_check_interval")
_OPTIONS_BEGIN = ("socket_", "ssl_")


@dataclass(frozen=True)
class Address:
    """A URL without its secrets."""

    where: str
    database: int

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL, or raise without repeating it: it holds a password.

        >>> Address.parse("redis://:secret@redis-1/2"), Address.parse("unix:///run/redis?db=3")
        (Address(where='redis-1:6379', database=2), Address(where='/run/redis', database=3))
        """
        try:
            parts = urlsplit(url)
            options = parse_qs(parts.query, keep_blank_values=True)
            where = parts.path
            path = ""
            if parts.scheme != "unix":
                where, path = f"{parts.hostname or 'localhost'}:{parts.port or 6379}", parts.path
            database = int(options["db"][0] if "db" in options else path.strip("/") or 0)
        except (ValueError, TypeError, AttributeError):
            parts = None
        if parts is None or parts.scheme not in _SCHEMES or database < 0:
            raise BadSink(
                "a URL of Redis is redis://[user][:password]@host[:port][/database], or rediss:// "
                "for TLS, or unix://; the one given is not (special characters of a password are "
                "written as %XX). Nothing was written."
            )
        # Not named: what follows a bare ? in a password looks like an option.
        if not all(map(_taken, options)):
            raise BadSink(
                "the URL of Redis has an option that RedisSink does not take; it takes "
                f"{', '.join(_OPTIONS)}, and what begins with {' or '.join(_OPTIONS_BEGIN)}. If it "
                "is part of a password: special characters there are written as %XX. "
                "Nothing was written."
            )
        return cls(where, database)


def _taken(option: str) -> bool:
    plain = option.replace("_", "").isalnum()
    return option in _OPTIONS or (plain and option.startswith(_OPTIONS_BEGIN))


def without_password(text: str, url: str) -> str:
    """Return a text without the password of a URL."""
    try:
        parts = urlsplit(url)
        secrets = [parts.password or "", *parse_qs(parts.query).get("password", ())]
    except ValueError:
        secrets = []
    return redacted(text, secrets)
