"""What a test sees when its server cannot be had: a skip with the reason, and a failure in CI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from beadline.testing.servers import ServerFailed, ServerUnavailable, debian
from beadline.testing.servers.fixtures import serve


@contextmanager
def server(error: Exception | None = None) -> Iterator[str]:
    if error:
        raise error
    yield "running"


def test_a_server_that_runs_is_handed_out() -> None:
    assert list(serve(server())) == ["running"]


def test_unavailable_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no java"):
        next(serve(server(ServerUnavailable("no java"))))


def test_unavailable_is_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no java"):
        next(serve(server(ServerUnavailable("no java"))))


def test_failed_is_never_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(ServerFailed, match="died"):
        next(serve(server(ServerFailed("namenode died"))))


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH, as root's: its ``apt-get`` logs its calls, and installs there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    apt = folder / "apt-get"
    made = folder / "cached"
    apt.write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/calls\n: > {made}; /bin/chmod +x {made}\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(debian, "_POLICY", tmp_path / "policy-rc.d")
    return tmp_path / "calls"


def test_nothing_is_installed_unless_it_was_asked_for(
    installer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (None, "", "0"):
        monkeypatch.delenv(debian.INSTALL, raising=False)
        if value is not None:
            monkeypatch.setenv(debian.INSTALL, value)
        with pytest.raises(ServerUnavailable) as unavailable:
            debian.program("cached", "cache-server")
        for word in ("program cached ", "apt-get install cache-server", f"{debian.INSTALL}=1"):
            assert word in str(unavailable.value)
    assert not installer.exists()


def test_a_server_is_installed_on_request(installer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(debian.INSTALL, "1")
    assert debian.program("cached", "cache-server").name == "cached"
    assert installer.read_text().split() == ["update", "install"]


def test_a_server_is_not_installed_without_root(
    installer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(debian.INSTALL, "1")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ServerUnavailable, match="only as root on Debian or Ubuntu"):
        debian.program("cached", "cache-server")
    assert not installer.exists()
