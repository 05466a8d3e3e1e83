"""Positions for lag tools: reading Spark's offset log, and saying Java's settings again."""

from __future__ import annotations

from pathlib import Path

import pytest

from beadline.errors import BadSetting
from beadline.sources.kafka import positions
from beadline.sources.kafka.positions import GROUP_OPTION, Positions, followers, parse_offsets
from beadline.sources.kafka.settings import librdkafka_settings

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1", GROUP_OPTION: "lag"}


def test_offsets_of_every_source() -> None:
    text = 'v1\n{}\n{"logOffset":3}\n{"orders":{"0":5,"1":7},"old":{"0":0}}\n-\n12'
    assert parse_offsets(text, 4) == [{}, {"orders": {0: 5, 1: 7}, "old": {0: 0}}, {}, {}]


@pytest.mark.parametrize(
    ("text", "reason"),
    [('v2\n{}\n{"orders":{"0":5}}', "version 'v2'"), ("v1\n{}\n1\n2", "2 sources, and the plan 1")],
)
def test_what_is_not_understood_is_not_guessed(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_offsets(text, 1)


def test_only_sources_with_a_group_are_followed() -> None:
    (found,) = followers([{}, {GROUP_OPTION: "lag", "kafka.sasl.jaas.config": "hush"}, {"a": "b"}])
    assert (found.source, found.group) == (1, "lag")
    assert "hush" not in repr(found)


def test_settings_of_both_clients() -> None:
    options = {
        "subscribe": "orders",
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{PLAIN} username="me" password="a\\"b;=c";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "ca.pem",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.max.poll.records": "20000",
    }
    assert librdkafka_settings(options) == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": 'a"b;=c',
        "ssl.ca.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kafka.ssl.truststore.location": "secret.jks"}, "JKS file.*type=PEM"),
        ({"kafka.sasl.jaas.config": "com.example.Mine required token=secret;"}, "login module"),
        ({"kafka.sasl.jaas.config": ""}, "login module"),
        ({"kafka.sasl.jaas.config": f'{PLAIN} user="secret";'}, "no username="),
    ],
)
def test_what_has_no_counterpart(options: dict[str, str], reason: str) -> None:
    with pytest.raises(BadSetting, match=reason) as raised:
        librdkafka_settings(options)
    assert "secret" not in str(raised.value)


def test_a_failure_is_reported_once_a_minute_and_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here there are no offsets to write, which fails at once."""
    monkeypatch.setattr(positions, "WRITE_EVERY_S", 0.0)
    monkeypatch.setattr(positions, "RETRY_EVERY_S", 0.0)
    told: list[tuple[str, int]] = []
    following = Positions([NOBODY], f"file:{tmp_path}")
    following.start(lambda kind, epoch, **details: told.append((kind, epoch)), -1)
    for epoch in range(5):
        following.submit(epoch)
    while not told:
        following.submit(5)
    following.close()
    assert [kind for kind, _ in told] == ["positions failed"]


def test_without_a_group_to_follow_no_thread_is_started(tmp_path: Path) -> None:
    following = Positions([{}], f"file:{tmp_path}")
    assert following.listening(print) is print
    following.start(lambda kind, epoch, **details: None, 3)
    following.close()
