"""Servers that come as packages of the system: found where they are, installed on request.

Nothing is installed unless ``BEADLINE_INSTALL_SERVERS=1`` asks for it, which is meant for throwaway
machines such as a CI container, and needs root on Debian or Ubuntu. Otherwise the error says what
to install. Debian's packages start their servers at once; here they are told not to, because tests
start their own, on their own data.
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

INSTALL = "BEADLINE_INSTALL_SERVERS"
# Where Debian puts servers outside a user's PATH; the newest version first.
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/lib/postgresql/*/bin")
_POLICY = Path("/usr/sbin/policy-rc.d")  # Debian asks it before it starts a service
_FORBID_START = "#!/bin/sh\nexit 101\n"
_TIMEOUT_S = 600


def program(name: str, package: str) -> Path:
    """Return a server's program; `ServerUnavailable` if it is neither here nor to be installed."""
    found = _find(name)
    wanted = os.environ.get(INSTALL, "") not in ("", "0")
    if found is None and wanted and os.geteuid() == 0 and shutil.which("apt-get"):
        with _one_at_a_time():
            found = _find(name)
            if found is None:
                _install(package)
                found = _find(name)
    if found is None:
        how = f"{INSTALL}=1 installs it only as root on Debian or Ubuntu"
        if not wanted:
            how = f"as root, set {INSTALL}=1 to have it installed by the test run"
        raise ServerUnavailable(
            f"the server program {name} is not installed. It is in Debian's package {package} "
            f"(apt-get install {package}); {how}."
        )
    return found


def _find(name: str) -> Path | None:
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
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
        last_lines = done.stdout.decode(errors="replace").strip().splitlines()[-5:]
        raise ServerUnavailable("\n".join([f"{' '.join(command)} failed:", *last_lines]))


@contextmanager
def _services_stay_down() -> Iterator[None]:
    """Keep Debian from starting the servers it installs; a policy of the machine's own stays."""
    made_here = not _POLICY.exists()
    if made_here:
        _POLICY.write_text(_FORBID_START)
        _POLICY.chmod(0o755)
    try:
        yield
    finally:
        if made_here:
            _POLICY.unlink(missing_ok=True)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two test runs on one machine must not both call apt."""
    with open(Path(tempfile.gettempdir(), "beadline-apt.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
