"""Which settings are secret by their names: one list, for every client and report."""

from __future__ import annotations

from pathlib import Path

import pytest

import beadline
from beadline.shared.secrets import SECRET_NAME

SRC = Path(beadline.__file__).parent


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "kafka.sasl.jaas.config",
        "sasl.oauthbearer.config",
        "ssl.key.pem",
        "ssl.key.location",
        "kafka.ssl.keystore.key",
        "kafka.ssl.trustStore.Password",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.shop",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.app.accessKey",
        "-Dapp.key=abc",
        "-Dapp.apiKey=abc",
        "-Dapp.pwd=abc",
        "mail.passwd",
        "schema.registry.basic.auth.user.info",
        "spark.hadoop.fs.azure.sas.orders.shop.blob.core.windows.net",
    ],
)
def test_a_secret(name: str) -> None:
    assert SECRET_NAME.search(name)


@pytest.mark.parametrize(
    "name",
    [
        *("subscribe", "kafka.ssl.keystore.type", "ssl.keystore.location", "spark.keyed.rows"),
        *("sasl.mechanism", "sasl.username", "client.dns.lookup", "spark.sql.session.timeZone"),
    ],
)
def test_no_secret(name: str) -> None:
    """What is masked is missing from an error, where it would help."""
    assert not SECRET_NAME.search(name)


def test_one_module_says_what_counts_as_a_secret() -> None:
    named = [path.name for path in SRC.rglob("*.py") if "password|" in path.read_text("utf-8")]
    assert named == ["secrets.py"]
