"""Ports on the loopback interface that a server can be given, and keep over a restart."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"

# Below the range from which systems hand out the ports of outgoing connections: such a port would
# be taken by a passing connection while its server is down for a restart, and a client that waits
# for the server on it can even connect to itself.
_FIRST, _LAST = 15_000, 32_000
_random = random.SystemRandom()  # seeded tests side by side must not all try the same ports


def free_ports(count: int) -> list[int]:
    """Distinct ports that are free now."""
    found: set[int] = set()
    while len(found) < count:
        port = _random.randint(_FIRST, _LAST)
        if port not in found and _is_free(port):
            found.add(port)
    return list(found)


def accepts(port: int) -> bool:
    """Whether a process listens on the port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
