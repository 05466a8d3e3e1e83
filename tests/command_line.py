"""Commands of `beadline`, run in this process, as the tests call them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from beadline import cli

Invoke = Callable[..., tuple[int, str, str]]


@contextmanager
def invoking(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: int = 200,
) -> Iterator[Invoke]:
    """Yield a function that runs one command and returns its exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", os.environ.get("SPARK_SUBMIT_OPTS", ""))
    levels = {name: logging.getLogger(name).level for name in ("py4j", "kafka")}

    def invoke(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["beadline", command, *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    yield invoke
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
