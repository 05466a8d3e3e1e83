"""`beadline transactions` as the tests call it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.command_line import Invoke, invoking
from tests.servers.kafka_doubt import Doubt


@pytest.fixture(name="invoke")
def invoke_fixture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Invoke]:
    """`beadline transactions` in this process; gives code, stdout, stderr."""
    with invoking("transactions", monkeypatch, capsys) as invoke:
        yield invoke


def listed(invoke: Invoke, doubt: Doubt, *arguments: object) -> dict[str, Any]:
    """The object that `list --json` prints, with its transactions by id."""
    code, out, err = invoke("list", "--bootstrap-servers", doubt.servers, *arguments, "--json")
    assert code == 0, out + err
    found: dict[str, Any] = json.loads(out)
    found["by_id"] = {one["id"]: one for one in found["transactions"]}
    return found
