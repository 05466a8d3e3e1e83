"""KafkaSink's settings: what each client is told, and what is refused or kept out of texts."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from beadline.errors import BadSink
from beadline.sinks.kafka.settings import KafkaSettings

QUEUE = "queue.buffering.max.kbytes"

# Made for this test and used nowhere else: CN=client, signed by itself, good until 2120.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBRTCB66ADAgECAgEBMAoGCCqGSM49BAMCMBExDzANBgNVBAMMBmNsaWVudDAg
Fw0yMDAxMDEwMDAwMDBaGA8yMTIwMDEwMTAwMDAwMFowETEPMA0GA1UEAwwGY2xp
ZW50MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE00fkcOjKfqagZrG+q9vhy0FI
lrDBH+OvjYSleUj5HDoVXYrCKm7DdrXJB4KmfnIex1eyCByvOPfJB4xLcvAbEKMy
MDAwDwYDVR0TAQH/BAUwAwEB/zAdBgNVHQ4EFgQUM/Cw7bLTbGDiGBdpS4W5gF/x
asUwCgYIKoZIzj0EAwIDSQAwRgIhAMhKzSjWgITGZHn3F8Dw5SqUwas0Yp1eG/oc
BAbkWSZqAiEA6566Atqgnl+tdUDErPAsH9s91txMG2RjB0AYIf3ldbM=
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAj1pAT0EyDl0gICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEL2NJ1ypYLwFhjzdgUmBkNEEgZAM
0KtMQsHTHFQxTHRgHzCBlpGzk9d5ncvFAUc9OWgg5FIdPFrUEszLM+MCVkGiDsIE
mdrRSysZecVtTmBXiAeQ+vhUeGDeY1Tm53NTsNB0omAdJawD8ka7Lb86HB+a/4wX
JMSMYdnC1v3Qt59vNENMXR1Y6IXIyVhNhOLffO3HnK8hCdH9ljGWB9Vd4oU5a54=
-----END ENCRYPTED PRIVATE KEY-----
"""
PASSWORD = "open-sesame"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The options of a client that has a certificate, and a password on its key."""
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    certificate.write_text(CERTIFICATE)
    key.write_text(KEY)
    return {
        "security.protocol": "ssl",
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
        "ssl.key.password": PASSWORD,
    }


def admin(given: dict[str, Any]) -> dict[str, Any]:
    return KafkaSettings("b:1", given).admin(10)


def seen_by_a_broker(client: ssl.SSLContext, files: dict[str, str]) -> dict[str, Any] | None:
    """Shake hands in memory with a peer that demands a certificate; return the one that came."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files["ssl.certificate.location"], files["ssl.key.location"], PASSWORD)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cadata=CERTIFICATE)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there, server_hostname="elsewhere")
    broker = server.wrap_bio(there, back, server_side=True)
    for side in (ours, broker, ours, broker):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return broker.getpeercert()


def test_files_and_names_go_to_the_other_client(files: dict[str, str]) -> None:
    told = admin({**files, "ssl.ca.location": "ca.pem", "linger.ms": 5})
    assert told["security_protocol"] == "SSL"
    assert told["ssl_cafile"] == "ca.pem"
    assert told["ssl_certfile"] == files["ssl.certificate.location"]
    assert told["ssl_keyfile"] == files["ssl.key.location"]
    assert told["ssl_password"] == PASSWORD
    assert "ssl_context" not in told


def test_without_verification_the_clients_certificate_is_shown_all_the_same(
    files: dict[str, str],
) -> None:
    """kafka-python ignores certificate files where it is given a context."""
    told = admin({**files, "enable.ssl.certificate.verification": "false"})
    shown = seen_by_a_broker(told["ssl_context"], files)
    assert shown is not None
    assert shown["subject"] == ((("commonName", "client"),),)


def test_without_verification_and_without_a_certificate(files: dict[str, str]) -> None:
    told = admin({"enable.ssl.certificate.verification": False})
    with pytest.raises(ssl.SSLError, match=r"(?i)did not return a certificate"):
        seen_by_a_broker(told["ssl_context"], files)


def test_what_only_librdkafka_understands_is_refused() -> None:
    with pytest.raises(BadSink, match=r"PLAIN or SCRAM.*Kerberos is untested.*gssapi"):
        KafkaSettings("b:1", {"ssl.certificate.pem": CERTIFICATE}).check()


@pytest.mark.parametrize(
    ("given", "kbytes"),
    [
        ({}, 32_768),
        ({"message.max.bytes": 100_000_000}, 97_657),
        ({"message.max.bytes": "100000000", QUEUE: 200_000}, 200_000),
        ({QUEUE: 1000}, 1000),
    ],
)
def test_the_queue_takes_the_largest_record(given: dict[str, object], kbytes: int) -> None:
    settings = KafkaSettings("b:1", given)
    settings.check()
    made = settings.producer()
    assert made[QUEUE] == kbytes
    assert made[QUEUE] * 1024 > int(str(given.get("message.max.bytes", 0)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"message.max.bytes": 40_000_000, QUEUE: 32_768}, "no room for a record of message.max"),
        ({QUEUE: "a lot"}, "must be a whole number, not 'a lot'"),
        ({"message.max.bytes": -1}, "must be a whole number"),
    ],
)
def test_a_queue_that_is_too_small_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(BadSink, match=says):
        KafkaSettings("b:1", given).check()


def test_secret_values_are_taken_out_of_texts() -> None:
    settings = KafkaSettings(
        "b:1", {"sasl.password": "s3cret", "ssl.key.pem": "", "client.id": "me"}
    )
    assert settings.redacted('Invalid value "s3cret" of me') == 'Invalid value "***" of me'
    assert "s3cret" not in repr(settings)
