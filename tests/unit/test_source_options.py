"""Options of sources: one that is misspelt is refused with the one that was meant."""

from __future__ import annotations

import logging

import pytest

from beadline.errors import BadSetting
from beadline.guarantee.options import KNOWN, check_options, unknown

MISSPELT = [
    ("json", "maxFilesPerTriger", "maxFilesPerTrigger"),
    ("parquet", "maxFilePerTrigger", "maxFilesPerTrigger"),
    ("csv", "headers", "header"),
    ("csv", "delimeter", "delimiter"),
    ("kafka", "startingOffset", "startingOffsets"),
    ("kafka", "failOnDataLos", "failOnDataLoss"),
    ("kafka", "kafka.isolation.levl", "kafka.isolation.level"),
    ("kafka", "isolation.level", "kafka.isolation.level"),
    ("rate", "rowsPerSeconds", "rowsPerSecond"),
]


@pytest.mark.parametrize(("source", "name", "meant"), MISSPELT)
def test_a_misspelt_option_is_refused(source: str, name: str, meant: str) -> None:
    with pytest.raises(BadSetting, match=f"{name}.*Did you mean '{meant}'") as raised:
        check_options(source, {name: "hunter2"}, "files('in')")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("source", KNOWN)
def test_known_options_pass_in_any_case(source: str, caplog: pytest.LogCaptureFixture) -> None:
    names = [name for known in KNOWN[source] for name in (known, known.lower(), known.upper())]
    with caplog.at_level(logging.WARNING):
        check_options(source, names, "it")
    assert caplog.records == []


@pytest.mark.parametrize(
    "name",
    [
        "fs.s3a.endpoint",  # of the file system
        "kafka.transaction.timeout.ms",  # of Kafka's producers, and useless, but not misspelt
        "kafka.my.interceptor.address",
    ],
)
def test_settings_of_others_pass(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_options("kafka", [name], "kafka()")
    assert caplog.records == []


def test_a_name_like_no_other_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_options("json", {"color": "hunter2"}, "files('in')")
    (record,) = caplog.records
    assert "'color'" in record.getMessage()
    assert "hunter2" not in record.getMessage()


def test_an_unknown_source_may_have_any_option() -> None:
    assert list(unknown("turnstile", ["maxFilesPerTriger"])) == []
