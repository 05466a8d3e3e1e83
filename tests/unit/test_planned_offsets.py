"""The positions in Spark's checkpoint are those that Spark has planned: all of them, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from beadline.errors import PlannedByAnother
from beadline.spark.checkpoint import SparkProgress

TOPIC = '{"t":{"0":11,"1":7}}'


def planned(folder: Path, shown: str | None, *lines: str, version: str = "v1") -> str:
    (folder / "offsets").mkdir()
    (folder / "offsets/3").write_text("\n".join([version, '{"batchWatermarkMs":0}', *lines]))
    return SparkProgress(f"file:{folder}").offsets_planned(3, shown)


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        ("[11]", ["11"]),
        (f"[{TOPIC}, -, 11]", [TOPIC, "-", "11"]),
        ("[-]", ["-"]),
        (None, ["11"]),  # a Spark that does not tell is believed
    ],
)
def test_the_same(tmp_path: Path, shown: str | None, lines: list[str]) -> None:
    assert planned(tmp_path, shown, *lines)


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        ("[110]", ["11"]),
        ("[211]", ["11"]),
        ("[11]", ["-"]),
        ("[11, 12]", ["12", "11"]),
        ("[11, 12]", ["11"]),
        (f"[{TOPIC}]", ["7"]),
    ],
)
def test_others_that_only_look_alike(tmp_path: Path, shown: str, lines: list[str]) -> None:
    with pytest.raises(PlannedByAnother, match="were replaced by another driver") as said:
        planned(tmp_path, shown, *lines)
    # An epoch that is replayed is decided; of one that is published, rows may show.
    assert str(said.value).endswith(
        "Nothing more of the epoch is decided or shown until it is planned again."
    )


def test_a_form_that_is_not_known_is_believed(tmp_path: Path) -> None:
    assert planned(tmp_path, "OffsetMap", "11", version="v2")
