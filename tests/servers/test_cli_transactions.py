"""`beadline transactions list`: what is open, whose it is, what will become of it, who waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beadline import extras
from beadline.sinks.kafka.markers import Reader
from beadline.testing.servers import KafkaCluster
from tests.command_line import Invoke
from tests.servers.kafka_doubt import SINK, Doubt, take
from tests.servers.transactions_cli import invoke_fixture, listed  # noqa: F401


@pytest.fixture
def doubt(kafka_cluster: KafkaCluster, tmp_path: Path) -> Iterator[Doubt]:
    made = Doubt(kafka_cluster, tmp_path)
    yield made
    made.close()


def held_up(doubt: Doubt) -> Any:
    """One record, an orphan, one more record; and a group that has read the first."""
    doubt.produce("before")
    orphan = doubt.prepare(1, slot=3)
    doubt.produce("after")
    reader = doubt.reader(f"group-of-{doubt.topic}")
    assert take(reader) == "before"
    return orphan, reader


def test_everything_of_an_open_transaction(invoke: Invoke, doubt: Doubt) -> None:
    orphan, reader = held_up(doubt)
    found = listed(invoke, doubt, "--query", doubt.query.name)
    (one,) = found["transactions"]
    assert one["id"] == orphan.committable.transactional_id
    assert (one["query"], one["sink"], one["slot"]) == (doubt.query.name, SINK, 3)
    assert one["incarnation"] == doubt.query.incarnation
    assert one["part"] == {"epoch": 1, "partition": 0, "attempt": 0, "generation": 1}
    assert (one["state"], one["prepared"], one["ours"]) == ("Ongoing", True, True)
    assert one["verdict"] == "unknown"
    producer = (one["producer_id"], one["producer_epoch"])
    assert producer == (orphan.committable.producer_id, orphan.committable.producer_epoch)
    assert 0 <= one["age_ms"] < 60_000
    assert one["timeout_ms"] == 600_000
    assert one["aborts_at_ms"] == one["started_at_ms"] + 600_000
    places = {(place["topic"], place["partition"]): place for place in one["partitions"]}
    assert set(places) == {(doubt.topic, 0), (f"beadline-{doubt.query.name}", 0)}
    place = places[doubt.topic, 0]
    assert (place["first_offset"], place["stable_offset"], place["end_offset"]) == (1, 1, 5)
    assert (place["holds"], place["held_by"], place["waiting"]) == (True, one["id"], 4)
    assert place["groups"] == [{"name": f"group-of-{doubt.topic}", "offset": 1}]
    reader.close()


def test_people_see_the_same(invoke: Invoke, doubt: Doubt) -> None:
    orphan, reader = held_up(doubt)
    doubt.decide(0, [])
    where = ("--bootstrap-servers", doubt.servers, "--checkpoint", doubt.checkpoint)
    code, out, _ = invoke("list", *where)
    assert code == 0
    assert f"query {doubt.query.name}: 1 open transaction (1 orphan), readers held up in 1" in out
    assert orphan.committable.transactional_id in out
    assert f"query {doubt.query.name}, sink {SINK}, slot 3: prepared, epoch 1, partition 0" in out
    assert "Ongoing, orphan, open for " in out
    assert "of 10 min: the broker aborts it in 9 min" in out
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == [doubt.topic])
    assert row[1:6] == ["0", "1", "1", "5", "4"]
    assert f"group-of-{doubt.topic} (at 1)" in out
    assert "or the next start aborts it" in out
    reader.close()


def test_a_transaction_of_another_application_that_blocks_is_named(
    invoke: Invoke, doubt: Doubt
) -> None:
    """What holds a reader up need not be what one is looking at."""
    stranger = doubt.stranger("strange")
    ours = doubt.prepare(0).committable.transactional_id
    found = listed(invoke, doubt, "--query", doubt.query.name)
    assert list(found["by_id"]) == [ours]
    assert found["others"] >= 1
    place = next(p for p in found["by_id"][ours]["partitions"] if p["topic"] == doubt.topic)
    assert (place["holds"], place["held_by"]) == (False, stranger)
    for arguments in ((), ("--query", doubt.query.name, "--all")):
        by_id = listed(invoke, doubt, *arguments)["by_id"]
        assert {ours, stranger} <= set(by_id)
        assert (by_id[stranger]["ours"], by_id[stranger]["query"]) == (False, None)
        assert (by_id[stranger]["part"], by_id[stranger]["verdict"]) == (None, "unknown")
        assert by_id[stranger]["partitions"][0]["holds"] is True
    _, out, _ = invoke("list", "--bootstrap-servers", doubt.servers)
    assert "not created by Beadline" in out
    assert "by an earlier one: number " in out


def test_the_log_judges(invoke: Invoke, doubt: Doubt) -> None:
    decided, orphan = doubt.prepare(0, slot=0), doubt.prepare(0, partition=1, slot=1)
    doubt.decide(0, [decided])
    stranger = doubt.stranger("strange")
    found = listed(invoke, doubt, "--checkpoint", doubt.checkpoint, "--all")
    verdicts = {id_: one["verdict"] for id_, one in found["by_id"].items()}
    assert verdicts[decided.committable.transactional_id] == "decided"
    assert verdicts[orphan.committable.transactional_id] == "orphan"
    assert verdicts[stranger] == "unknown"
    assert (found["query"], found["decided_epoch"]) == (doubt.query.name, 0)
    assert any(
        "epoch 0 is decided and not known to be finished: 1 of its 1" in n for n in found["notes"]
    )


def test_the_same_producer_in_a_later_transaction_is_not_decided(
    invoke: Invoke, doubt: Doubt
) -> None:
    """Id and epoch of a producer stay the same from one transaction to the next (rule 17)."""
    first = doubt.prepare(0)
    epoch = doubt.decide(0, [first])
    doubt.sink.commit(epoch, [first])
    later = doubt.prepare_again(2, first)
    assert later.committable.producer_epoch == first.committable.producer_epoch
    found = listed(invoke, doubt, "--checkpoint", doubt.checkpoint)
    one = found["by_id"][first.committable.transactional_id]
    assert (one["verdict"], one["part"]["epoch"]) == ("orphan", 2)


def test_a_sink_that_was_given_up(invoke: Invoke, doubt: Doubt) -> None:
    part = doubt.prepare(0)
    doubt.decide(0, [part])
    doubt.claim(dropped=(SINK,))
    (one,) = listed(invoke, doubt, "--checkpoint", doubt.checkpoint)["transactions"]
    assert one["verdict"] == "orphan"


def test_another_control_topic(invoke: Invoke, kafka_cluster: KafkaCluster, tmp_path: Path) -> None:
    doubt = Doubt(kafka_cluster, tmp_path, control_topic="markers-elsewhere")
    try:
        part = doubt.prepare(0)
        found = listed(invoke, doubt, "--query", doubt.query.name)
        (one,) = found["transactions"]
        assert (one["prepared"], one["part"]) == (None, None)
        assert any(f"no control topic 'beadline-{doubt.topic}'" in note for note in found["notes"])
        told = ("--control-topic", "markers-elsewhere")
        (one,) = listed(invoke, doubt, "--query", doubt.query.name, *told)["transactions"]
        assert (one["prepared"], one["part"]["epoch"]) == (True, 0)
        doubt.decide(0, [part])  # the decision tells where
        (one,) = listed(invoke, doubt, "--checkpoint", doubt.checkpoint)["transactions"]
        assert (one["prepared"], one["part"]["epoch"]) == (True, 0)
    finally:
        doubt.close()


def test_not_prepared_yet(invoke: Invoke, doubt: Doubt) -> None:
    name = doubt.begun(0)
    (one,) = listed(invoke, doubt, "--query", doubt.query.name)["transactions"]
    assert (one["id"], one["prepared"], one["part"]) == (name, False, None)


def test_a_look_is_quick(doubt: Doubt) -> None:
    """Its own time, not the machine's: nothing waits for what does not come.

    Reading markers waited half a second for each end of a topic.
    """
    parts = [doubt.prepare(0, partition=number, slot=number) for number in range(3)]
    doubt.sink.commit(doubt.decide(0, parts[:1]), parts[:1])  # its end lies behind other markers
    reader = Reader(doubt.sink.settings)
    topic = doubt.sink.control_topic_of(doubt.query.name)
    took_s = []
    for _ in range(5):
        began_s = time.monotonic()
        assert {marker.part for marker in reader.open_now(topic)} == {p.id for p in parts[1:]}
        took_s.append(time.monotonic() - began_s)
    assert min(took_s) < 0.4, took_s


# A whole call, which says in its exit code whether anything has imported Spark meanwhile.
CALL = """
import sys
from beadline import cli
try:
    cli.main()
except SystemExit as ended:
    sys.exit(ended.code or 70 * ("pyspark" in sys.modules))
"""


def test_a_whole_call_is_quick(doubt: Doubt) -> None:
    """Half of its time was the import of Spark, and half waiting for what does not come."""
    orphan = doubt.prepare(1)
    doubt.decide(0, [])
    where = ("--bootstrap-servers", doubt.servers, "--checkpoint", str(doubt.checkpoint), "--json")
    took_s = []
    for _ in range(3):
        share = min(1.0, (os.cpu_count() or 1) / max(os.getloadavg()[0], 0.1))
        began_s = time.monotonic()
        called = subprocess.run(
            [sys.executable, "-c", CALL, "transactions", "list", *where],
            capture_output=True,
            text=True,
            check=False,
        )
        took_s.append((time.monotonic() - began_s) * share)
        assert called.returncode == 0, called.stderr
        assert orphan.committable.transactional_id in called.stdout
    assert min(took_s) < 4, took_s


@pytest.mark.parametrize("module", ["beadline.cli._transactions", "beadline.cli.app"])
def test_the_commands_do_without_spark(module: str) -> None:
    code = f"import sys, {module}; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_is_open(invoke: Invoke, doubt: Doubt) -> None:
    doubt.decide(0, [])
    found = listed(invoke, doubt, "--checkpoint", doubt.checkpoint)
    assert found["transactions"] == []
    code, out, _ = invoke("list", "--bootstrap-servers", doubt.servers, "--query", "nobodys")
    assert (code, "query nobodys: no open transactions" in out) == (0, True)


def test_a_checkpoint_of_another_query(invoke: Invoke, doubt: Doubt) -> None:
    doubt.decide(0, [])
    where = ("list", "--bootstrap-servers", doubt.servers, "--checkpoint")
    code, _, err = invoke(*where, doubt.checkpoint, "--query", "other")
    assert (code, f"is of query '{doubt.query.name}', not 'other'" in err) == (2, True)
    code, _, err = invoke(*where, doubt.checkpoint.parent / "nowhere")
    assert (code, "there is no checkpoint" in err) == (2, True)


def test_no_broker(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("beadline.sinks.kafka.client._REQUEST_TIMEOUT_S", 1.0)
    code, out, err = invoke("list", "--bootstrap-servers", "127.0.0.1:1")
    assert (code, out) == (1, "")
    assert "Kafka at 127.0.0.1:1 does not answer as it should" in err
    assert "Traceback" not in err
    code, out, _ = invoke("list", "--bootstrap-servers", "127.0.0.1:1", "--json")
    assert (code, json.loads(out)["exit_code"]) == (1, 1)


def test_the_extra_is_missing(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = extras.Requirement("no_such_kafka", "kafka-python")
    monkeypatch.setattr(extras, "EXTRAS", {**extras.EXTRAS, "kafka": (nowhere,)})
    code, _, err = invoke("list", "--bootstrap-servers", "127.0.0.1:1")
    assert (code, "pip install 'beadline[kafka]'" in err) == (1, True)


def test_secrets_are_not_printed(invoke: Invoke, doubt: Doubt, tmp_path: Path) -> None:
    doubt.prepare(0)
    file = tmp_path / "client.properties"
    file.write_text("# ours\n\nsasl.password = dont-tell-me \nsasl.username=me\n")
    where = ("list", "--bootstrap-servers", doubt.servers, "--query", doubt.query.name)
    for json_ in ((), ("--json",)):
        code, out, err = invoke(*where, "--options-file", file, *json_)
        assert (code, "dont-tell-me" in out + err) == (0, False)
    wrong: tuple[tuple[object, ...], ...] = (
        ("--option", "dont-tell-me"),
        ("--option", "sasl.password=dont-tell-me", "--option", "security.protocol=nonsense"),
        ("--option", "sasl.password=dont-tell-me", "--option", "bootstrap.servers=there"),
        ("--option", "sasl.password=dont-tell-me", "--option", "ssl.key.pem=dont-tell-me"),
        ("--options-file", tmp_path / "nowhere"),
    )
    for arguments in wrong:
        code, out, err = invoke(*where, *arguments)
        assert (code, "dont-tell-me" in out + err) == (2, False), err
    file.write_text("dont-tell-me\n")
    code, _, err = invoke(*where, "--options-file", file)
    assert (code, f"line 1 of {file} is not KEY=VALUE" in err) == (2, True)
