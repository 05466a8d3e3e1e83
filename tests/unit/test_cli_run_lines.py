"""What `beadline run` says of each event, above all of rows that a sink does not have."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from beadline.cli.run import _as_lines
from beadline.observe import Event


def line(kind: str, epoch: int | None = None, **details: Any) -> str:
    (said,) = _as_lines(Event(kind, "orders", 4, epoch, details))
    return said


def test_a_start_names_every_sink_that_is_not_complete() -> None:
    since, lacks = {"all": 0, "late": 3, "holed": 0}, {"holed": "epochs 5, 7 to 9"}
    assert line("claimed", since=since, lacks=lacks) == (
        "generation 4 holds the log; late has rows from epoch 3 on; holed lacks epochs 5, 7 to 9"
    )
    assert line("claimed", since={"all": 0}, lacks={}) == "generation 4 holds the log"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (line("added", 3, sink="late"), "sink late is new: it gets rows from epoch 3 on"),
        (line("removed", sink="old"), "sink old is no longer one of the query's sinks"),
        (
            line("dropped", sink="old", epochs="epochs 1 to 2"),
            "[red]given up[/]: rows of epochs 1 to 2 in old",
        ),
    ],
)
def test_what_becomes_of_a_sink_is_printed(said: str, expected: str) -> None:
    assert said == expected


def test_the_command_line_starts_without_spark() -> None:
    """Importing it takes a second, of which `beadline transactions` has no use."""
    code = "import sys, beadline.cli.app; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
