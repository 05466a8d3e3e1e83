"""What a job file takes from the environment shows in nothing that its processes say."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest

from beadline.errors import BeadlineError, UsageError
from beadline.verify.child import Child
from beadline.verify.job import main
from beadline.verify.rounds import remove_ranges
from beadline.verify.run import Options, Verifier
from beadline.verify.source_range import RangeLimits
from beadline.verify.task import FOUND, INSPECT, RANGES, TASK, Task
from tests.unit.test_job_toml import _as_before, changed

__all__ = ["_as_before"]  # the fixture

SECRET = "hunter2 is my secret"


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError(f"no: {SECRET}"), 2), (OSError(f"no: {SECRET}"), 1)]
)
def test_the_process_of_the_job(
    error: Exception,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PASSWORD", SECRET)
    file = tmp_path / "job.toml"
    file.write_text(changed(("SELECT *", "SELECT '${PASSWORD}'")), "utf-8")
    Task(str(file), {}, "v1", RangeLimits()).save(tmp_path)

    def fail(task: Task, folder: Path) -> None:
        raise error

    monkeypatch.setattr("beadline.verify.job.inspect", fail)
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), INSPECT])
    assert ended.value.code == code
    assert not (tmp_path / TASK).exists()  # it may hold passwords
    out, err = capfd.readouterr()
    assert "hunter2" not in out + err
    told = json.loads(out)
    assert told["error"] == type(error).__name__
    assert "no: ${PASSWORD}" in told["message"]
    assert ("Traceback" in err) == (not isinstance(error, BeadlineError))


def test_the_log_of_a_child(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = Child(
        "ast",
        ["/nowhere/hunter2"],
        log,
        tmp_path,
        redact=lambda text: text.replace("hunter2", "${PASSWORD}"),
    )
    assert child.wait(60) != 0
    child.end()
    assert "hunter2" in log.read_text("utf-8")
    assert "/nowhere/${PASSWORD}" in child.complaint()
    assert "hunter2" not in child.complaint()


def test_what_is_kept_holds_no_password(tmp_path: Path) -> None:
    made = Verifier(Options("j", 7, keep=True))
    made.redact = lambda text: text.replace("hunter2", "${PASSWORD}")
    folder = made.folder / "round-01"
    Task("j", {"spark.my.password": "hunter2"}, "v1", RangeLimits()).save(folder)
    for name in (FOUND, RANGES):
        (folder / name).write_bytes(b"hunter2")
    (folder / "child-000.log").write_text("who is hunter2?")
    try:
        made._tidy_up()
        kept = {path.name: path.read_text() for path in folder.rglob("*")}
        assert kept == {"child-000.log": "who is ${PASSWORD}?"}
    finally:
        shutil.rmtree(made.folder)


def test_ranges_are_deleted_when_they_are_read(tmp_path: Path) -> None:
    (tmp_path / RANGES).write_bytes(pickle.dumps(()))
    assert remove_ranges(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
