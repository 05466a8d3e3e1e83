"""Progress of ``beadline verify`` where nobody draws bars: in a pipe or a file."""

from __future__ import annotations

import pytest

from beadline.cli.output import ForPeople, ForPrograms
from beadline.cli.verify import _progress


def test_a_pipe_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with _progress(ForPeople()) as step:
        step(0, 12, "decide.after/group")
        step(1, 12, "moment/worker@3")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("s  ", 1)[1] for line in lines] == [
        "0/12 done; now: decide.after/group",
        "1/12 done; now: moment/worker@3",
    ]


def test_programs_get_none(capsys: pytest.CaptureFixture[str]) -> None:
    with _progress(ForPrograms()) as step:
        step(0, 12, "decide.after/group")
    assert capsys.readouterr().out == ""
