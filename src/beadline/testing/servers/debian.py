"""Servers that come as packages of the system: found where they are, installed where that is ours.

A test run as root on Debian or Ubuntu, a container of CI for example, installs what is missing.
Anybody else is told what to install: a test does not ask for passwords. Packages of servers start
them at once; here they are told not to, because tests start their own, on their own data.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from beadline.testing.servers.base import ServerUnavailable

# Where servers are that are not for everybody's PATH; the newest version first.
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/lib/postgresql/*/bin")
_POLICY = Path("/usr/sbin/policy-rc.d")  # Debian asks it before it starts a service
_NOT_NOW = "#!/bin/sh\nexit 101\n"
_TIMEOUT_S = 600


def program(name: str, package: str) -> Path:
    """Return a server's program; `ServerUnavailable` if it is not here and cannot be installed."""
    found = _find(name)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with _one_at_a_time():
            found = _find(name)
            if found is None:
                _install(package)
                found = _find(name)
    if found is None:
        raise ServerUnavailable(f"{name} is not installed; on Debian: apt-get install {package}")
    return found


def _find(name: str) -> Path | None:
    usual = shutil.which(name)
    if usual:
        return Path(usual)
    for pattern in _FOLDERS:
        folders = sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
        for folder in folders:
            if (folder / name).exists():
                return folder / name
    return None


def _install(package: str) -> None:
    with _services_stay_down():
        _apt("update", "--quiet")
        _apt("install", "--yes", "--quiet", "--no-install-recommends", package)


def _apt(*arguments: str) -> None:
    command: Sequence[str] = ("apt-get", *arguments)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServerUnavailable(f"{' '.join(command)} took over {_TIMEOUT_S} s") from None
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip().splitlines()[-5:]
        raise ServerUnavailable("\n".join([f"{' '.join(command)} failed:", *said]))


@contextmanager
def _services_stay_down() -> Iterator[None]:
    """Leave a policy that is there alone."""
    ours = not _POLICY.exists()
    if ours:
        _POLICY.write_text(_NOT_NOW)
        _POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            _POLICY.unlink(missing_ok=True)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two test runs on one machine must not both call apt."""
    with open(Path(tempfile.gettempdir(), "beadline-apt.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
