"""The reports of ``beadline verify``: for people, for programs, and as a page on its own."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from rich.console import Console

from beadline.points import EVERY_POINT
from beadline.verify.compare import Violation, ViolationKind
from beadline.verify.faults import Fault
from beadline.verify.html import page
from beadline.verify.report import INCONCLUSIVE, FaultResult, Verification, views
from beadline.verify.run import Options
from beadline.verify.source_range import RangeLimits

LOST = Violation(ViolationKind.LOST, "orders", "1 row, ('<b>',), is not there", 1, 2)


def report(*found: Violation) -> Verification:
    results = [
        FaultResult(Fault.parse("decide.before"), 1, seconds=3.0, after=2),
        FaultResult(
            Fault.parse("moment/worker@2"),
            2,
            found=list(found),
            seconds=4.0,
            chain=("decide.before/process",),
        ),
        FaultResult(Fault.parse("ledger.after"), note="out of time: --minutes 1"),
    ]
    points = ("decide.before", "ledger.after", "claim.after")
    rows = {"orders": 100}
    return Verification("my job.py", "shop", 7, 12, rows, results, points, ("a note",), 12.5)


def text_of(made: Verification) -> str:
    console = Console(width=200, record=True, force_terminal=False)
    with console.capture() as captured:
        for view in views(made):
            console.print(view, highlight=False)
    return captured.get()


def test_a_fine_run() -> None:
    made = report()
    assert made.fine
    assert (made.kills, made.faults) == (3, 2)
    text = text_of(made)
    assert "3 kills with -9, 2 faults in all" in text
    assert "not reached: out of time" in text


def test_a_violation_is_reported_with_all_that_led_to_it() -> None:
    made = report(LOST)
    assert not made.fine
    again = "beadline verify 'my job.py' --seed 7 --only decide.before/process,moment/worker@2"
    assert made.replay(made.results[1]) == again
    text = text_of(made)
    assert again in text
    assert "VIOLATED: lost" in text
    assert "lost in orders" in text


def test_the_command_has_every_option_that_changes_what_is_run() -> None:
    assert Options("j", 7, kills=3, minutes=1.0, keep=True).words == ()
    conf = {
        "spark.sql.shuffle.partitions": "3 4",
        "spark.hadoop.fs.s3a.secret.key": "hunter2",
        "spark.hadoop.fs.s3a.access.key": "hunter2",
        "spark.my.url": "db://anna:hunter2@host",
    }
    asked = Options(
        "j", 7, limits=RangeLimits(5, 6, 7), conf=conf, output_mode="update", in_place=True
    )
    made = replace(report(LOST), options=asked.words)
    again = made.replay(made.results[0])
    assert again == (
        "beadline verify 'my job.py' --seed 7 --epochs 5 --files 6 --records 7 "
        "--output-mode update --in-place --conf 'spark.sql.shuffle.partitions=3 4' "
        "--conf 'spark.hadoop.fs.s3a.secret.key=***' --conf 'spark.hadoop.fs.s3a.access.key=***' "
        "--conf 'spark.my.url=***' --only decide.before/process"
    )
    assert "hunter2" not in page(made) + text_of(made) + str(made.as_dict())
    assert "--in-place" in next(line for line in text_of(made).split("\n") if "Any fault" in line)


def test_every_point_is_reached_or_has_a_reason() -> None:
    missing = report().unreached()
    assert set(missing) == set(EVERY_POINT) - {"decide.before"}
    assert missing["ledger.after"].startswith("out of time")
    assert "--kills" in missing["claim.after"]
    assert "not part of this job" in missing["kafka.begun"]
    assert "lost" in missing["kafka.proof"]


def test_the_object_for_programs() -> None:
    found = json.loads(json.dumps(report(LOST).as_dict(), default=str))
    assert found["verdict"] == "VIOLATED"
    assert found["seed"] == 7
    assert [fault["verdict"] for fault in found["faults"]] == [
        "exactly-once",
        "VIOLATED",
        "not reached",
    ]
    assert found["faults"][1]["violations"][0]["kind"] == "lost"
    assert found["points_reached"] == ["decide.before"]
    assert report().as_dict()["verdict"] == "exactly-once"


def test_nothing_tried_is_not_fine() -> None:
    made = Verification("j", "q", 1, 1, {}, [], (), (), 1.0)
    assert not made.fine
    assert made.exit_code == INCONCLUSIVE
    assert "nothing is proven" in text_of(made)
    assert "nothing is proven" in page(made)


def test_the_page_needs_nothing_else() -> None:
    text = page(report(LOST))
    assert text.startswith("<!doctype html>")
    assert not re.search(r"<script|<link|<img|https?://|@import|url\(", text)
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert "--only decide.before/process,moment/worker@2" in re.sub(r"<[^>]*>", "", text)
    assert "kill -9" in text


UNENDED = FaultResult(
    Fault.parse("cut:cut@1"),
    1,
    seconds=240.0,
    chain=("decide.before/process",),
    unclear="cut:cut@1: a start did not end in 240 s; its last output: "
    "[Stage 3:===>       (5 + 2) / 8]\r[Stage 3:=====>\r\x1b[31mKilled\x1b[0m \x07\x00",
)


def with_unended(*found: Violation) -> Verification:
    made = report(*found)
    return replace(made, results=[*made.results, UNENDED])


def test_what_did_not_end_is_inconclusive_and_no_violation() -> None:
    made = with_unended()
    assert (made.verdict, made.exit_code, made.fine) == ("inconclusive", INCONCLUSIVE, False)
    assert made.violations == []
    found = json.loads(json.dumps(made.as_dict()))
    assert (found["verdict"], found["violations"], found["inconclusive"]) == ("inconclusive", 0, 1)
    assert found["faults"][-1]["verdict"] == "inconclusive"
    assert "did not end in 240 s" in found["faults"][-1]["inconclusive"]
    for text in (text_of(made), page(made)):
        assert "iolated" not in text
        assert "VIOLATED" not in text
        assert "Inconclusive: 1 of 4 faults" in text
        assert "did not end in 240 s" in text
    assert "--only decide.before/process,cut:cut@1" in text_of(made)


def test_a_violation_stays_one_beside_what_is_inconclusive() -> None:
    made = with_unended(LOST)
    assert (made.verdict, made.exit_code) == ("VIOLATED", 1)
    assert "Exactly-once is violated: 1 violation in 3 faults" in text_of(made)


def test_the_page_holds_no_control_characters_and_no_progress_bars() -> None:
    text = page(with_unended(replace(LOST, detail="a\tb \x1b[1mbold\x1b[0m \x01")))
    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text) == []
    assert "[Stage" not in text
    assert "Killed" in text


def test_the_page_breaks_no_word() -> None:
    text = page(with_unended(LOST))
    style = text[text.index("<style>") : text.index("</style>")]
    assert not re.search(r"overflow-wrap|word-break|hyphens", style)
    assert "overflow-x: auto" in style  # what is wider than the window is scrolled to
