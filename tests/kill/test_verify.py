"""`beadline verify` as a user runs it: broken sinks are caught within 20 kills, good ones pass."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slowness import patient
from tests.spark.jobs import write_input
from tests.spark.test_job_toml import QUERY, SOURCE

ROOT = Path(__file__).parents[2]
BROKEN_JOB = ROOT / "tests" / "kill" / "broken" / "job.py"
KILLS = "20"
TIMEOUT_S = patient(840)
# Each broken sink, and what it must be found guilty of, by whichever of these comes to light first.
BROKEN = {
    "CommitsBeforeDecision": {"aborted but read", "duplicated"},
    "RepeatsCommit": {"duplicated"},
    "ForgetsAbort": {"left behind"},
    "AcksBeforeFlush": {"lost", "torn epoch"},
    "LateTakesEffect": {"duplicated"},
}
GOOD_JOB = """
from pathlib import Path
from beadline import exactly_once, sources
from beadline.sinks import FileSink, SqliteSink
HERE = Path(__file__).parent
def totals(frame):
    return frame.groupBy("k").agg({"id": "count", "v": "sum"}).toDF("k", "n", "v")
def job(spark):
    rows = sources.files(spark, str(HERE / "in"), format="json", schema="id long, k string, v long")
    stream = exactly_once(rows, "shop").to(FileSink(str(HERE / "out")), name="files")
    return stream.to(
        SqliteSink(HERE / "o.db", "totals", mode="add", key="k"), rows=totals, name="totals"
    )
"""
BY_CHANCE = """
from pathlib import Path
from pyspark.sql import functions as F
from beadline import exactly_once, sources
from beadline.sinks import SqliteSink
HERE = Path(__file__).parent
def job(spark):
    rows = sources.files(spark, str(HERE / "in"), format="json", schema="id long, k string, v long")
    rows = rows.withColumn("u", F.expr("uuid()"))
    return exactly_once(rows, "shop").to(SqliteSink(HERE / "o.db", "rows"))
"""
UNFIXED = """
from beadline import exactly_once, sources
from beadline.sinks import SqliteSink
def job(spark):
    return exactly_once(sources.rate(spark), "shop").to(SqliteSink("o.db", "rows"))
"""


def verify(job: Path, *options: str, code: int | None = None, **environment: str) -> dict[str, Any]:
    """Run the command in a session of its own; return the last line."""
    command = [sys.executable, "-m", "beadline", "verify", str(job), "--json", *options]
    print(" ".join(command))
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=job.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except BaseException:
        process.send_signal(signal.SIGINT)  # it ends what it has started
        process.communicate(timeout=60)
        raise
    print(out[-5000:], err[-5000:])
    if code is not None:
        assert process.returncode == code
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def kinds_of(found: dict[str, Any]) -> set[str]:
    return {each["kind"] for fault in found["faults"] for each in fault["violations"]}


@pytest.mark.sampled(1)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_sink_is_caught(tmp_path: Path, name: str, seed: int) -> None:
    write_input(tmp_path / "in", 6)
    options = ("--kills", KILLS, "--seed", str(seed), "--fail-fast", "--minutes", "12")
    found = verify(BROKEN_JOB, *options, code=1, VERIFY_FOLDER=str(tmp_path), VERIFY_SINK=name)
    assert found["verdict"] == "VIOLATED"
    assert kinds_of(found) & BROKEN[name]
    assert found["kills"] <= int(KILLS)
    assert [path.name for path in tmp_path.glob("v*.db")] == []


@pytest.mark.timeout(900)
def test_a_good_job_passes_and_nothing_is_left(tmp_path: Path, seed: int) -> None:
    job = tmp_path / "job.py"
    job.write_text(GOOD_JOB)
    write_input(tmp_path / "in", 10)
    reports = ("--report", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"))
    only = "decide.after/group,recover.after,moment/worker@1,pause:decide.before,ledger.before"
    found = verify(job, "--seed", str(seed), "--only", only, *reports, code=0)
    assert found["verdict"] == "exactly-once"
    assert found["rows"]["files"] == 100
    points = {"decide.after", "recover.after", "ledger.before"}
    assert points <= set(found["points_reached"])
    assert json.loads((tmp_path / "r.json").read_text()) == found
    assert "decide.after/group" in (tmp_path / "r.html").read_text()
    there = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert there == {"job.py", "in", "r.json", "r.html"}


@pytest.mark.timeout(600)
def test_a_job_of_sql_in_toml(tmp_path: Path, seed: int) -> None:
    job = tmp_path / "job.toml"
    job.write_text(SOURCE + QUERY)
    write_input(tmp_path / "in", 4)
    secret = ("--conf", "spark.my.password=hunter2", "--keep")
    found = verify(job, "--seed", str(seed), "--only", "decide.after/group", *secret, code=0)
    assert found["verdict"] == "exactly-once"
    assert found["points_reached"] == ["decide.after"]
    assert {path.name for path in tmp_path.iterdir()} == {"job.toml", "in"}
    (kept,) = (Path(note.split()[4].strip(",")) for note in found["notes"] if "is kept in" in note)
    files = [path for path in kept.rglob("*") if path.is_file()]
    try:
        assert any(path.suffix == ".log" for path in files)
        assert [path for path in files if b"hunter2" in path.read_bytes()] == []
    finally:
        shutil.rmtree(kept)


WINDOWS_JOB = """
[sources.orders]
type = "files"
path = "in"
format = "json"
schema = "k string, v long, ts timestamp"
max_files_per_epoch = 1

[windows.turnover]
from = "orders"
time = "ts"
size = "10 minutes"
by = "k"
watermark = "1 minute"
allowed_lateness = "20 minutes"
late = "side"
agg = { orders = "count", amount = "sum:v" }

[query]
name = "turnover"
view = "turnover"

[[query.sinks]]
type = "sqlite"
path = "o.db"
table = "turnover"
mode = "upsert"
key = ["k", "window_start"]

[[query.sinks]]
type = "files"
path = "late"
format = "json"
output = "late"
"""


@pytest.mark.timeout(600)
def test_windows_that_fire_again_and_rows_too_late_for_them(tmp_path: Path, seed: int) -> None:
    """State, timers and revisions survive every kill, and a driver that takes over."""
    job = tmp_path / "job.toml"
    job.write_text(WINDOWS_JOB)
    (tmp_path / "in").mkdir()
    for number in range(8):
        # Each file is 12 minutes on, with rows 15 minutes behind (corrections) and 50 (too late).
        minutes = [12 * number + at for at in (1, 3, -15, -50)]
        rows = [
            {
                "k": "ab"[at % 2],
                "v": number,
                "ts": f"2026-01-01T{10 + at // 60:02}:{at % 60:02}:00Z",
            }
            for at in minutes
        ]
        path = tmp_path / "in" / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + number,) * 2)
    only = "decide.after/group,moment/worker@1,epoch.return/group,pause:decide.before,prepare.acked"
    found = verify(job, "--seed", str(seed), "--only", only, code=0)
    assert found["verdict"] == "exactly-once"
    assert found["rows"]["files-late"] > 3
    assert found["rows"]["o-turnover"] > 8
    assert {"decide.after", "epoch.return"} <= set(found["points_reached"])


STATE_JOB = """
from datetime import timedelta
from pathlib import Path
from beadline import exactly_once, sources
from beadline.event_time import KeyedProcess, interval_join, keyed_process
from beadline.sinks import SqliteSink
HERE = Path(__file__).parent
class Totals(KeyedProcess):
    def open(self, state):
        self.total = state.value("total", "bigint")
    def process(self, row, ctx):
        self.total.update((self.total.get() or 0) + row.v)
        ctx.timer(row.ts + timedelta(minutes=5))
        yield row.k, self.total.get()
    def on_timer(self, time, ctx):
        ctx.emit_to("due", (ctx.key.k, time, self.total.get()))
def job(spark):
    rows = sources.files(
        spark, str(HERE / "in"), format="json", schema="k string, v long, ts timestamp",
        max_files_per_epoch=1,
    )
    if KEYED:
        outputs = {"main": "k string, n bigint", "due": "k string, at timestamp, n bigint"}
        found = keyed_process(
            rows, Totals(), by="k", outputs=outputs, time="ts", watermark="1 minute"
        )
        stream = exactly_once(found, "state").to(SqliteSink(HERE / "o.db", "rows"))
        return stream.to(SqliteSink(HERE / "o.db", "due"), output="due")
    left = rows.where("v % 2 = 0").selectExpr("k", "v AS lv", "ts AS lts")
    right = rows.where("v % 2 = 1").selectExpr("k", "v AS rv", "ts AS rts")
    found = interval_join(
        left, right, "k", left_time="lts", right_time="rts", how="full",
        between=("-3 minutes", "3 minutes"), watermark="1 minute",
    )
    return exactly_once(found, "state").to(SqliteSink(HERE / "o.db", "rows"))
"""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("keyed", [True, False])
def test_a_keyed_process_and_a_join(tmp_path: Path, seed: int, keyed: bool) -> None:
    job = tmp_path / "job.py"
    job.write_text(STATE_JOB.replace("KEYED", str(keyed)))
    (tmp_path / "in").mkdir()
    for number in range(8):
        rows = [
            {
                "k": "ab"[at % 2],
                "v": 10 * number + at,
                "ts": f"2026-01-01T10:{4 * number + at:02}:00Z",
            }
            for at in range(4)
        ]
        path = tmp_path / "in" / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + number,) * 2)
    only = "decide.after/group,moment/worker@1,epoch.return/group,pause:decide.before"
    found = verify(job, "--seed", str(seed), "--only", only, code=0)
    assert found["verdict"] == "exactly-once"
    assert found["rows"]["o-rows"] > 8
    if keyed:
        assert found["rows"]["o-due"] > 3


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_point_of_a_good_job(tmp_path: Path, seed: int) -> None:
    job = tmp_path / "job.py"
    job.write_text(GOOD_JOB)
    write_input(tmp_path / "in", 12)
    found = verify(job, "--seed", str(seed), "--minutes", "50", code=0)
    missed = {
        point: why
        for point, why in found["points_not_reached"].items()
        if not point.startswith(("kafka.", "journal."))
    }
    assert missed == {}


HANGS = """
import os, time
from pathlib import Path
from beadline import exactly_once, sources
from beadline.sinks import SqliteSink
HERE = Path(__file__).parent
starts = HERE / "starts"
with starts.open("a") as file:
    file.write("x")
def job(spark):
    if len(starts.read_text()) > 4:  # a look, two undisturbed runs, the fault; then the last start
        time.sleep(3600)
    rows = sources.files(spark, str(HERE / "in"), format="json", schema="id long, k string, v long")
    return exactly_once(rows, "shop").to(SqliteSink(HERE / "o.db", "rows"))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_start_that_hangs_is_inconclusive(tmp_path: Path, seed: int) -> None:
    job = tmp_path / "job.py"
    job.write_text(HANGS)
    write_input(tmp_path / "in", 4)
    only = ("--only", "decide.after/group", "--timeout", "90")
    found = verify(job, "--seed", str(seed), *only, code=5)
    assert found["verdict"] == "inconclusive"
    assert (found["violations"], found["inconclusive"]) == (0, 1)
    assert "did not end in 90 s" in found["faults"][0]["inconclusive"]


@pytest.mark.timeout(120)
def test_an_undisturbed_run_that_does_not_end_proves_nothing(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(GOOD_JOB)
    write_input(tmp_path / "in", 2)
    found = verify(job, "--timeout", "0.5", code=5)
    assert found["exit_code"] == 5
    assert "did not end in" in found["message"]
    assert "--timeout" in found["message"]


@pytest.mark.timeout(600)
def test_a_job_by_chance_is_not_compared(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(BY_CHANCE)
    write_input(tmp_path / "in", 2)
    found = verify(job, code=2)
    assert "undisturbed runs" in found["message"]


@pytest.mark.timeout(300)
def test_a_source_that_cannot_be_fixed_is_refused(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(UNFIXED)
    found = verify(job, code=2)
    assert "source rate" in found["message"]
    assert "Record" in found["message"]
