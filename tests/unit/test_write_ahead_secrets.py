"""What ``HttpEndpoint`` shows to nobody, and whom it trusts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beadline.errors import BadSink, CommitFailed
from beadline.sink import Outcome
from beadline.sinks.write_ahead import HttpEndpoint, WriteAheadSink
from beadline.testing.suite.target import QUERY, epoch_id
from tests.unit.write_ahead_endpoints import SCHEMA, commit, prepare, rows
from tests.unit.write_ahead_shop import Shop, serving, sink_to


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def url(shop: Shop) -> Iterator[str]:
    with serving(shop) as address:
        yield address


def everything_shown(sink: WriteAheadSink, shop: Shop, folder: Path, answer: Any) -> list[str]:
    """Whatever people get to see of a sink whose endpoint repeats what it was sent."""
    parts = prepare(sink, 0, rows(1))
    shop.answers = [answer]
    with pytest.raises(CommitFailed, match="400") as caught:
        commit(sink, 0, parts)
    assert "…" in str(caught.value)
    files = [path for path in (folder / "wal").rglob("*") if path.is_file()]
    assert any(path.suffix == ".progress" for path in files)
    return [
        str(caught.value),
        repr(caught.value.__cause__),
        repr(sink),
        repr(sink.deliver),
        repr(sink.check(SCHEMA, QUERY)),
        json.dumps(parts[0].committable.to_json()),
        "".join(str(path) for path in folder.rglob("*")),
        *(path.read_text(errors="replace") for path in files),
    ]


def test_secrets_show_nowhere(shop: Shop, url: str, tmp_path: Path) -> None:
    for text in everything_shown(sink_to(url, tmp_path), shop, tmp_path, "echo"):
        for secret in ("s3cret", "k-very-secret", "Bearer"):
            assert secret not in text


@pytest.mark.parametrize("answer", ["echo", "echo decoded"])
def test_secrets_in_a_url_show_nowhere_as_written_or_decoded(
    shop: Shop, url: str, tmp_path: Path, answer: str
) -> None:
    """The path of a webhook is its password; and a server may say what it has decoded."""
    where = f"{url}/services/T0K%2Fhook-pass?key=a%20b%2Bc+d&user=j%C3%B6rg"
    sink = WriteAheadSink(HttpEndpoint(where), tmp_path / "wal")
    for text in everything_shown(sink, shop, tmp_path, answer):
        for secret in ("hook-pass", "a%20b", "a b+c", "b%2Bc", "jörg", "j%C3%B6rg", "T0K"):
            assert secret not in text


def test_two_paths_of_one_host_are_two_places() -> None:
    """And a key that is exchanged leaves the place as it is."""
    urls = [f"https://shop.example/{path}" for path in ("a", "b", "b/", "b?key=1", "b?key=2")]
    a, b, *others = map(HttpEndpoint, urls)
    assert (a.name, a.target) != (b.name, b.target)
    assert {(other.name, other.target) for other in others} == {(b.name, b.target)}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Signed by itself, for 127.0.0.1; the key is in the same file."""
    folder = tmp_path_factory.mktemp("tls")
    made = ["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made, *names],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=60,
    )
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return both


def test_a_certificate_that_nobody_vouches_for_is_refused(
    shop: Shop, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with serving(shop, certificate=certificate) as url:
        sink = sink_to(url, tmp_path, timeout_s=0.2)
        with pytest.raises(BadSink, match=r"self.signed certificate.*SSL_CERT_FILE"):
            sink.check(SCHEMA, QUERY)
        result = sink.commit(epoch_id(0), prepare(sink, 0, rows(1)))
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert "CERTIFICATE_VERIFY_FAILED" in result.detail
    assert shop.requests == []


def test_an_authority_of_ones_own(
    shop: Shop, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_name("cert.pem")))
    with serving(shop, certificate=certificate) as url:
        sink = sink_to(url, tmp_path, honours_ids=True)
        sink.check(SCHEMA, QUERY)
        assert commit(sink, 0, prepare(sink, 0, rows(1, 2, 3))) == {Outcome.COMMITTED}
        assert len(shop.connections) == 1
        other = sink_to(url.replace("127.0.0.1", "localhost"), tmp_path)
        with pytest.raises(BadSink, match=r"[Hh]ostname.*localhost"):
            other.check(SCHEMA, QUERY)
    assert shop.numbers == [1, 2, 3]
