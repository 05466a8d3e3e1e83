"""What a test sees when its server cannot be had: a skip with the reason, and a failure in CI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from beadline.testing.servers import ServerFailed, ServerUnavailable
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
