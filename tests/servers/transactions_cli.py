"""`beadline transactions` as the tests call it."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from beadline import cli
from tests.servers.kafka_doubt import Doubt

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture(name="invoke")
def invoke_fixture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Invoke]:
    """`beadline transactions` in this process; gives code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", os.environ.get("SPARK_SUBMIT_OPTS", ""))
    levels = {name: logging.getLogger(name).level for name in ("py4j", "kafka")}

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["beadline", "transactions", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    yield call
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def listed(invoke: Invoke, doubt: Doubt, *arguments: object) -> dict[str, Any]:
    """The object that `list --json` prints, with its transactions by id."""
    code, out, err = invoke("list", "--bootstrap-servers", doubt.servers, *arguments, "--json")
    assert code == 0, out + err
    found: dict[str, Any] = json.loads(out)
    found["by_id"] = {one["id"]: one for one in found["transactions"]}
    return found
