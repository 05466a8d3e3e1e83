"""`beadline transactions commit` and `abort`: what the log says, and by force what it cannot."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.sinks import KafkaSink
from beadline.testing.servers import KafkaCluster
from tests.command_line import Invoke
from tests.servers.kafka_doubt import SINK, Doubt, take
from tests.servers.transactions_cli import invoke_fixture, listed  # noqa: F401
from tests.spark import jobs


@pytest.fixture(params=["new protocol"])
def doubt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Doubt]:
    name = "kafka_cluster" if request.param == "new protocol" else "old_kafka_cluster"
    made = Doubt(request.getfixturevalue(name), tmp_path)
    yield made
    made.close()


both_protocols = pytest.mark.parametrize("doubt", ["new protocol", "old protocol"], indirect=True)


def where(doubt: Doubt) -> tuple[object, ...]:
    return ("--bootstrap-servers", doubt.servers, "--checkpoint", doubt.checkpoint)


@both_protocols
def test_commit_what_is_decided(invoke: Invoke, doubt: Doubt) -> None:
    one, other = doubt.prepare(0), doubt.prepare(0, partition=1, slot=1)
    doubt.decide(0, [one, other])
    assert doubt.visible() == []
    ids = [part.committable.transactional_id for part in (one, other)]
    code, out, err = invoke("commit", *ids, *where(doubt), "--yes", "--json")
    assert code == 0, err
    result = json.loads(out)
    assert (result["action"], result["failed"]) == ("commit", 0)
    assert [each["id"] for each in result["transactions"]] == ids
    assert {each["answer"] for each in result["transactions"]} == {"NO_ERROR"}
    assert {each["state"] for each in result["transactions"]} == {"CompleteCommit"}
    rows = ["0.0.0", "0.0.1", "0.0.2", "0.1.0", "0.1.1", "0.1.2"]
    assert sorted(doubt.visible()) == rows
    code, out, _ = invoke("commit", *ids, *where(doubt), "--yes")  # again changes nothing
    assert (code, out.count("committed: its rows are visible")) == (0, 2)
    assert out.count("ended; decided as epoch 0, partition ") == 2
    assert "not prepared" not in out
    assert "CompleteCommit, decided, begun " in out
    assert "open for" not in out
    assert sorted(doubt.visible()) == rows


@both_protocols
def test_abort_lets_readers_go_on(invoke: Invoke, doubt: Doubt) -> None:
    doubt.produce("before")
    orphan = doubt.prepare(1).committable.transactional_id
    doubt.produce("after")
    doubt.decide(0, [])
    reader = doubt.reader(f"group-of-{doubt.topic}")
    assert take(reader) == "before"
    assert take(reader, 1) is None
    code, out, err = invoke("abort", orphan, *where(doubt), "--yes")
    assert code == 0, err
    assert f"done   {orphan}" in out
    assert "aborted: readers continue past it (" in out
    assert take(reader) == "after"
    reader.close()
    assert listed(invoke, doubt, "--query", doubt.query.name)["transactions"] == []
    code, out, _ = invoke("abort", orphan, *where(doubt), "--yes")
    assert (code, "nothing is open under this id" in out) == (1, True)


def test_what_contradicts_the_log_is_refused(invoke: Invoke, doubt: Doubt) -> None:
    decided, orphan = doubt.prepare(0), doubt.prepare(0, partition=1, slot=1)
    doubt.decide(0, [decided])
    ids = [part.committable.transactional_id for part in (decided, orphan)]
    code, out, err = invoke("commit", *ids, *where(doubt), "--yes")
    assert (code, out) == (3, "")
    assert f"GuaranteeRefused: {ids[1]}" in err
    assert "would show twice if it were committed" in err
    code, out, err = invoke("abort", *reversed(ids), *where(doubt), "--yes")
    assert (code, out) == (3, "")
    assert "would be missing if it were aborted" in err
    assert doubt.states(*ids) == ["Ongoing", "Ongoing"]  # also the one that fitted


def test_a_query_that_has_decided_nothing_yet(invoke: Invoke, doubt: Doubt) -> None:
    doubt.claim()
    orphan = doubt.prepare(0).committable.transactional_id
    code, _, err = invoke("commit", orphan, *where(doubt), "--yes")
    assert code == 3
    assert f"query '{doubt.query.name}' has decided no epoch yet, so the rows of this" in err


def test_against_the_log_by_force(invoke: Invoke, doubt: Doubt) -> None:
    """It is done, and said: a decided one that was aborted is lost, and the next start knows."""
    decided, orphan = doubt.prepare(0), doubt.prepare(0, partition=1, slot=1)
    doubt.decide(0, [decided])
    ids = [part.committable.transactional_id for part in (decided, orphan)]
    code, out, err = invoke("commit", ids[1], *where(doubt), "--yes", "--force")
    assert (code, "commit by force: AGAINST THE DECISION LOG" in out) == (0, True), err
    code, out, err = invoke("abort", ids[0], *where(doubt), "--yes", "--force", "--json")
    (result,) = json.loads(out)["transactions"]
    assert (code, result["ok"], result["forced"]) == (0, True, True), err
    assert sorted(doubt.visible()) == ["0.1.0", "0.1.1", "0.1.2"]
    code, out, _ = invoke("commit", ids[0], *where(doubt), "--yes")
    assert (code, "lost: its marker is proven absent" in out) == (1, True)


@both_protocols
@pytest.mark.parametrize("action", ["commit", "abort"])
def test_a_producer_that_goes_on_meanwhile(
    invoke: Invoke, doubt: Doubt, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """What was shown has ended; what is open now was not, and half of it must not show."""
    stranger = doubt.stranger("shown")

    def confirm(_: str) -> bool:
        doubt.go_on("half of the next")
        return True

    monkeypatch.setattr(typer, "confirm", confirm)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    alone = ("--bootstrap-servers", doubt.servers, "--force")
    code, _, err = invoke(action, stranger, *alone)
    assert (code, "has begun another transaction meanwhile" in err) == (2, True)
    assert doubt.states(stranger) == ["Ongoing"]
    assert doubt.visible() == ["shown"]


def test_a_transaction_that_no_log_knows_is_refused(invoke: Invoke, doubt: Doubt) -> None:
    ours = doubt.prepare(0).committable.transactional_id
    stranger = doubt.stranger("strange")
    doubt.decide(0, [])
    alone = ("--bootstrap-servers", doubt.servers, "--yes")
    elsewhere = Doubt(doubt.cluster, doubt.checkpoint.parent / "elsewhere")
    elsewhere.decide(0, [])
    for action in ("commit", "abort"):
        code, _, err = invoke(action, ours, *alone)
        assert (code, "without --checkpoint it is not known whether" in err) == (2, True)
        code, _, err = invoke(action, stranger, *where(doubt), "--yes")
        assert (code, "it was not begun by Beadline" in err) == (2, True)
        assert f"no decision log says whether to {action} it" in err
        code, _, err = invoke(action, ours, *where(elsewhere), "--yes")
        assert (code, f"the checkpoint to '{elsewhere.query.name}'" in err) == (2, True)
    assert doubt.states(ours, stranger) == ["Ongoing", "Ongoing"]
    elsewhere.close()


def test_by_force(invoke: Invoke, doubt: Doubt) -> None:
    ours = [doubt.prepare(0, number, number).committable.transactional_id for number in (0, 1)]
    strangers = [doubt.stranger("kept"), doubt.stranger("thrown away")]
    force = ("--bootstrap-servers", doubt.servers, "--yes", "--force")
    code, out, err = invoke("commit", ours[0], strangers[0], *force)
    assert code == 0, err
    assert "commit by force: Its rows become visible, for good. If no decision names it" in out
    assert "its producer has not confirmed that they are complete" in out
    code, out, err = invoke("abort", ours[1], strangers[1], *force)
    assert code == 0, err
    assert "abort by force: Its rows are discarded. If a decision names it" in out
    assert sorted(doubt.visible()) == ["0.0.0", "0.0.1", "0.0.2", "kept"]
    with pytest.raises(KafkaException, match=r"(?i)fenced"):  # it lives, and is told
        doubt.producers[1].commit_transaction(30)


def test_the_operator_is_asked(
    invoke: Invoke, doubt: Doubt, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = doubt.prepare(0).committable.transactional_id
    doubt.decide(0, [])
    for json_ in ((), ("--json",)):
        code, out, err = invoke("abort", orphan, *where(doubt), *json_)
        assert code == 2
        assert "there is no terminal to ask for confirmation. Add --yes" in out + err

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    code, out, _ = invoke("abort", orphan, *where(doubt))
    assert (code, "abort this transaction?" in out, "Nothing was changed." in out) == (
        1,
        True,
        True,
    )
    assert doubt.states(orphan) == ["Ongoing"]
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    code, out, _ = invoke("abort", orphan, *where(doubt))
    assert (code, orphan in out) == (0, True)


def test_one_of_two_fails(invoke: Invoke, doubt: Doubt) -> None:
    orphan = doubt.prepare(0).committable.transactional_id
    doubt.decide(0, [])
    code, out, _ = invoke("abort", "no-such-id", orphan, *where(doubt), "--yes", "--json")
    result = json.loads(out)
    assert (code, result["failed"]) == (1, 1)
    assert [each["ok"] for each in result["transactions"]] == [False, True]
    assert "know no such transactional id" in result["transactions"][0]["meaning"]


def test_a_decided_transaction_that_was_lost_is_reported(invoke: Invoke, doubt: Doubt) -> None:
    """The broker's own answer is no proof; the marker that is not there is."""
    part = doubt.prepare(0)
    doubt.decide(0, [part])
    doubt.sink.abort([part])
    code, out, _ = invoke(
        "commit", part.committable.transactional_id, *where(doubt), "--yes", "--json"
    )
    (result,) = json.loads(out)["transactions"]
    assert (code, result["ok"]) == (1, False)
    assert result["meaning"].startswith("lost: its marker is proven absent")
    assert result["answer"] not in ("NO_ERROR", "")


def test_a_query_that_runs_is_left_alone(invoke: Invoke, doubt: Doubt) -> None:
    orphan = doubt.prepare(0).committable.transactional_id
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as driver:
        doubt.claim(host=socket.gethostname(), pid=driver.pid)
        code, _, err = invoke("abort", orphan, *where(doubt), "--yes")
        assert (code, f"process {driver.pid} of this host" in err) == (2, True)
        assert "appears to be active" in err
        notes = listed(invoke, doubt, "--checkpoint", doubt.checkpoint)["notes"]
        assert any("the query may be active" in note for note in notes)
        driver.communicate(b"\n")
    assert doubt.states(orphan) == ["Ongoing"]
    assert invoke("abort", orphan, *where(doubt), "--yes")[0] == 0


@pytest.mark.parametrize(("moves", "exit_code"), [("decide", 2), ("claim", 4)])
def test_a_log_that_moves_meanwhile(
    invoke: Invoke, doubt: Doubt, monkeypatch: pytest.MonkeyPatch, moves: str, exit_code: int
) -> None:
    orphan = doubt.prepare(1)
    doubt.decide(0, [])
    move: dict[str, Callable[[], object]] = {
        "decide": lambda: doubt.decide(1, [orphan]),
        "claim": doubt.claim,
    }

    def confirm(_: str) -> bool:
        move[moves]()
        return True

    monkeypatch.setattr(typer, "confirm", confirm)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    code, _, err = invoke("abort", orphan.committable.transactional_id, *where(doubt))
    assert (code, "Nothing was changed" in err) == (exit_code, True)
    assert doubt.states(orphan.committable.transactional_id) == ["Ongoing"]


def test_a_copy_of_the_checkpoint_is_no_judge(invoke: Invoke, doubt: Doubt) -> None:
    orphan = doubt.prepare(0).committable.transactional_id
    doubt.decide(0, [])
    copy = doubt.checkpoint.parent / "copy"
    shutil.copytree(doubt.checkpoint, copy)
    servers = ("--bootstrap-servers", doubt.servers)
    code, _, err = invoke("abort", orphan, *servers, "--checkpoint", copy, "--yes", "--force")
    assert (code, "it is a copy" in err) == (1, True)
    notes = listed(invoke, doubt, "--checkpoint", copy)["notes"]
    assert any("a copy of that checkpoint" in note for note in notes)


def test_after_a_real_crash(
    spark: SparkSession, kafka_cluster: KafkaCluster, tmp_path: Path, invoke: Invoke
) -> None:
    """A decided epoch committed by hand: its readers have it at once, the next start not twice."""
    topic = f"crashed-{tmp_path.name}".replace("_", "-")
    kafka_cluster.create_topic(topic)
    sink = KafkaSink(topic, bootstrap_servers=kafka_cluster.bootstrap_servers)

    def stream() -> object:
        rows = jobs.read(spark, tmp_path / "in").selectExpr("CAST(id AS STRING) AS value")
        return exactly_once(rows, "crashed").to(sink, name=SINK)

    ids = jobs.write_input(tmp_path / "in", files=1)
    jobs.run_and_die(stream(), tmp_path, "decide.after")  # type: ignore[arg-type]
    assert kafka_cluster.read(topic) == []
    servers = ("--bootstrap-servers", kafka_cluster.bootstrap_servers)
    checkpoint = ("--checkpoint", tmp_path / "checkpoint")
    code, out, err = invoke("list", *servers, *checkpoint, "--json")
    assert code == 0, err
    found = json.loads(out)["transactions"]
    assert {(one["sink"], one["verdict"], one["part"]["epoch"]) for one in found} == {
        (SINK, "decided", 0)
    }
    code, _, err = invoke("commit", *[one["id"] for one in found], *servers, *checkpoint, "--yes")
    assert code == 0, err
    for _ in range(2):  # the second time after the next start
        values = [int(record.value or b"") for record in kafka_cluster.read(topic)]
        assert sorted(values) == ids
        jobs.run(stream(), tmp_path)  # type: ignore[arg-type]
