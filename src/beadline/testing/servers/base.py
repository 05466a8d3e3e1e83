"""What can go wrong when a test asks for a real server.

The two cases must stay apart. A server that *cannot be had* here (no Java, no Maven, no network)
says nothing about the code under test, so a test may skip. A server that was had and then *failed*
is a finding, and skipping would hide it::

    ServerError
    ├── ServerUnavailable   cannot be had on this machine; says what is missing
    └── ServerFailed        started, and did not come up, or died; carries the tail of its log
"""

from __future__ import annotations


class ServerError(Exception):
    """A server for tests is not there."""


class ServerUnavailable(ServerError):
    """The server cannot be had on this machine. Tests skip, or fail where CI=true."""


class ServerFailed(ServerError):
    """The server was there, and did not start or did not stay up. Tests fail."""
