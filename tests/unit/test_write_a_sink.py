"""The page for a sink's author shows code that is run: the sink, its proof, and the job."""

from __future__ import annotations

import re
from pathlib import Path

import beadline.sink

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-a-sink.md").read_text("utf-8")
SINK, PROOF, JOB = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
LINES_MAX = 80


def as_users_write(path: str) -> str:
    """A file of ours as it stands in a user's folder, beside the sink."""
    text = (ROOT / path).read_text("utf-8").replace("examples.duckdb_sink", "duckdb_sink")
    return re.sub(r"# noqa: F403 \((.*)\)", r"# \1", text)


def test_the_sink_on_the_page_is_the_example() -> None:
    assert as_users_write("examples/duckdb_sink.py") == SINK


def test_the_proof_on_the_page_is_the_test_that_runs() -> None:
    assert as_users_write("tests/unit/test_suite_duckdb.py") == PROOF


def test_the_sink_is_short_and_imports_beadline_once() -> None:
    assert len(SINK.splitlines()) <= LINES_MAX
    imports = re.findall(r"^(?:import|from) beadline.*$", SINK, re.MULTILINE)
    assert imports == ["import beadline.sink as bl"]


def test_every_method_on_the_page_is_there() -> None:
    named = re.findall(r"^\| `(\w+)(?:\(.*?\))?`", PAGE, re.MULTILINE)
    known = {
        *vars(beadline.sink.Capabilities(beadline.sink.Guarantee.EXACTLY_ONCE, "", "")),
        *beadline.sink.Outcome.__members__,
        *dir(beadline.sink.StagedSink),
        *dir(beadline.sink),
    }
    assert len(named) > 20
    assert set(named) <= known


def test_a_sink_retries_and_redacts_with_names_of_the_one_import() -> None:
    """Ours do as the page says, so nothing that they need can be missing from it."""
    past_it = [
        path.name
        for path in (ROOT / "src" / "beadline" / "sinks").rglob("*.py")
        if re.search(r"beadline\.shared(\.| import )(retry|secrets)", path.read_text("utf-8"))
        or re.search(r"from beadline\.sink\.\w+ import", path.read_text("utf-8"))
    ]
    assert past_it == []
    told = ("retry", "Retries", "Verdict", "running", "starting", "redacted", "SECRET_NAME")
    assert [name for name in told if not re.search(rf"[`(\s]{name}[`(.]", PAGE)] == []
    assert {*told, "delete_temporaries"} <= {*beadline.sink.__all__}
