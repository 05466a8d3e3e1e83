"""What is read of Spark's state without Spark: schemas, formats, differences, how it is shown."""

from __future__ import annotations

import io
import json
import re
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType
from rich.console import Console

from beadline.cli.state import FoundOperator, FoundState, as_object, size, views
from beadline.errors import CheckpointProblem, UsageError
from beadline.files import open_files, qualify
from beadline.spark.failures import KNOWN_CAUSES
from beadline.spark.progress_facts import ProgressFacts, StateReader, figures
from beadline.state.backend import CHECKPOINT_FORMAT, HDFS_BACKED, PROVIDER, ROCKSDB, backend_of
from beadline.state.compare import changes
from beadline.state.disk import disk_use
from beadline.state.metadata import StateOperator, Variable, parse_schemas, read_operators
from beadline.state.reading import names_of, parse_key


def java_utf(text: str) -> bytes:
    """A text as Java's `writeUTF` has it."""
    units = text.encode("utf-16-be", "surrogatepass")
    halves = "".join(chr(unit) for (unit,) in struct.iter_unpack(">H", units))
    data = halves.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    return struct.pack(">H", len(data)) + data


def chunks(text: str, length: int = 20) -> bytes:
    parts = [text[at : at + length] for at in range(0, len(text), length)]
    return struct.pack(">i", len(parts)) + b"".join(java_utf(part) for part in parts)


def columns(ddl: str) -> StructType:
    """`a bigint, b string` as a schema, without a JVM."""
    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in (one.rsplit(" ", 1) for one in ddl.split(", "))
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


def variable(name: str, key: str, value: str, kind: str = "", user_key: str = "") -> Variable:
    there = columns(user_key) if user_key else None
    return Variable(name, columns(key), columns(value), there, kind)


def aggregation(key: str = "k string", value: str = "count long", number: int = 0) -> StateOperator:
    return StateOperator(number, "stateStoreSave", 2, (variable("default", key, value),))


def transform(*variables: Variable, mode: str = "EventTime") -> StateOperator:
    return StateOperator(0, "transformWithStateInPandasExec", 2, variables, mode)


ODD = "column with \0 é and \N{SMILING FACE WITH SUNGLASSES}"


def test_a_schema_file_of_the_second_version_is_read() -> None:
    key, value = columns(f"{ODD} string"), columns("count long, total double")
    data = java_utf("v2") + chunks(key.json()) + chunks(value.json())
    (found,) = parse_schemas(data)
    assert (found.name, found.key, found.value) == ("default", key, value)


def test_a_schema_file_of_the_third_version_is_read() -> None:
    key, value, user = columns("k string"), columns("n long"), columns("at binary")
    data = java_utf("v3") + struct.pack(">i", 2)
    for name, there in (("open", user.json()), ("total", "{    }")):
        data += java_utf(name) + struct.pack(">h", 0) + chunks(key.json())
        data += struct.pack(">h", 3) + chunks(value.json()) + chunks("{}") + chunks(there)
    one, other = parse_schemas(data)
    assert (one.name, one.key, one.value, one.user_key) == ("open", key, value, user)
    assert (other.name, other.user_key) == ("total", None)


def test_a_damaged_metadata_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "0" / "_metadata"
    folder.mkdir(parents=True)
    (folder / "metadata").write_text("v1\n{")
    uri = qualify(tmp_path)
    with pytest.raises(CheckpointProblem, match=r"state/0: .* cannot be read"):
        read_operators(open_files(uri), uri)


def test_an_operator_that_was_begun_and_has_no_metadata_is_none(tmp_path: Path) -> None:
    (tmp_path / "state" / "0" / "1").mkdir(parents=True)
    uri = qualify(tmp_path)
    assert read_operators(open_files(uri), uri) == ()


def test_bytes_and_epochs_on_disk(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "0" / "1"
    (folder / "SSTs").mkdir(parents=True)
    for name, length in (
        ("7_d33577c5-1a95-436e-9ad9-61924e6a5c81.changelog", 10),
        ("8_d33577c5-1a95-436e-9ad9-61924e6a5c82.changelog", 20),
        ("8_d33577c5-1a95-436e-9ad9-61924e6a5c82.changelog.crc", 1),
        ("7_d33577c5-1a95-436e-9ad9-61924e6a5c81.zip", 100),
        ("SSTs/000008-b441a9ba.sst", 1000),
    ):
        (folder / name).write_bytes(b"x" * length)
    uri = qualify(tmp_path)
    found = disk_use(open_files(uri), uri, 0)
    assert (found.size, found.files) == (1131, 5)
    assert (found.oldest, found.newest, found.snapshot) == (6, 7, 6)
    assert found.changed == {6: 10, 7: 20}


def log(folder: Path, name: str, lines: list[str], epoch: int = 0) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / str(epoch)).write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("provider", "committed", "in_session", "expected"),
    [
        (None, None, ROCKSDB, {}),  # a new one: as the session says
        (None, None, HDFS_BACKED, {CHECKPOINT_FORMAT: "1"}),
        (HDFS_BACKED, "v1", ROCKSDB, {CHECKPOINT_FORMAT: "1"}),
        (ROCKSDB, "v1", ROCKSDB, {CHECKPOINT_FORMAT: "1"}),
        (ROCKSDB, "v2", HDFS_BACKED, {CHECKPOINT_FORMAT: "2"}),
        (ROCKSDB, "v3", ROCKSDB, {CHECKPOINT_FORMAT: "2"}),
        (ROCKSDB, None, ROCKSDB, {}),  # died in its first epoch
    ],
)
def test_a_checkpoint_continues_in_its_own_format(
    tmp_path: Path,
    provider: str | None,
    committed: str | None,
    in_session: str,
    expected: dict[str, str],
) -> None:
    if provider is not None:
        log(tmp_path, "offsets", ["v1", json.dumps({"conf": {PROVIDER: provider}}), "{}"])
    if committed is not None:
        log(tmp_path, "commits", ["v1", "{}"])
        log(tmp_path, "commits", [committed, "{}"], epoch=11)
    uri = qualify(tmp_path)
    assert backend_of(open_files(uri), uri).settings(in_session) == expected


@pytest.mark.parametrize(
    ("held", "new", "says"),
    [
        ([], [aggregation()], None),
        ([aggregation()], [aggregation()], None),
        # Spark matches an aggregation's columns by their places.
        ([aggregation(value="count long")], [aggregation(value="n long")], None),
        ([aggregation()], [], "no stateful operator.*an aggregation"),
        ([aggregation()], [aggregation(key="k long")], r"its key was \(k string\) and is \(k bigi"),
        (
            [aggregation()],
            [aggregation(value="count long, sum double")],
            r"value was \(count bigint\) and is \(count bigint, sum double\)",
        ),
        (
            [aggregation()],
            [StateOperator(0, "dedupe", 2, aggregation().variables)],
            r"it has dropDuplicates \(operator 0\), .* is of an aggregation \(operator 0\)",
        ),
        (
            [transform(variable("seen", "k string", "n long", "ValueState"))],
            [transform(variable("seen", "k string", "n long", "ListState"))],
            "variable 'seen': it was a ValueState and is a ListState",
        ),
        # In variables names are the author's: the other way round they would be read wrongly.
        (
            [transform(variable("seen", "k string", "n long, m long", "ValueState"))],
            [transform(variable("seen", "k string", "m long, n long", "ValueState"))],
            "variable 'seen': its value was",
        ),
        (
            [transform(variable("seen", "k string", "n long", "ValueState"))],
            [transform(variable("seen", "k string", "n long", "ValueState"), mode="NoTime")],
            "time mode was EventTime and is NoTime",
        ),
        # Spark's own windows are named after their division; older checkpoints do not say it.
        (
            [aggregation(key="k string, beadline_window_10_min long")],
            [aggregation(key="g string, beadline_window_10_min long")],
            None,
        ),
        (
            [aggregation(key="k string, window long")],
            [aggregation(key="k string, beadline_window_10_min long")],
            None,
        ),
        (
            [aggregation(key="k string, beadline_window_10_min long")],
            [aggregation(key="k string, beadline_window_1_hour long")],
            "its key was .*10_min.* and is .*1_hour",
        ),
        # A user's processor may begin to remember more: Spark allows it.
        (
            [transform(variable("seen", "k string", "n long", "ValueState"))],
            [
                transform(
                    variable("seen", "k string", "n long", "ValueState"),
                    variable("more", "k string", "n long", "ValueState"),
                )
            ],
            None,
        ),
        # One of Beadline's own has each variable for a setting.
        (
            [transform(variable("open", "beadline_bucket integer", "n long", "MapState"))],
            [
                transform(
                    variable("open", "beadline_bucket integer", "n long", "MapState"),
                    variable("fired", "beadline_bucket integer", "n long", "MapState"),
                )
            ],
            "fired",
        ),
        # What they have had since a later version begins empty.
        (
            [transform(variable("open", "beadline_bucket integer", "n long", "MapState"))],
            [
                transform(
                    variable("open", "beadline_bucket integer", "n long", "MapState"),
                    variable("dropped", "beadline_bucket integer", "n long", "ValueState"),
                )
            ],
            None,
        ),
    ],
)
def test_what_has_changed(
    held: list[StateOperator], new: list[StateOperator], says: str | None
) -> None:
    found = changes(held, new)
    if says is None:
        assert found == []
    else:
        assert len(found) == 1
        assert re.search(says, found[0]), found


def test_with_avro_values_are_left_to_spark() -> None:
    held, new = aggregation(), aggregation(value="count long, sum double")
    assert changes([held], [new], evolves=True) == []


def test_what_can_be_read_of_an_operator() -> None:
    assert names_of(aggregation()) == ("default",)
    assert names_of(StateOperator(0, "symmetricHashJoin", 2, ())) == ("left", "right")
    timers = variable("$eventTimers_keyToTimestamp", "k string", "n long", "TimerState")
    seen = variable("seen", "k string", "n long", "ValueState")
    assert names_of(transform(seen, timers)) == ("seen", "timers")
    assert names_of(transform(seen, mode="NoTime")) == ("seen",)


def test_a_key_is_a_column_and_a_value() -> None:
    assert parse_key("shop=a=b") == ("shop", "a=b")
    with pytest.raises(UsageError, match="--key 'Berlin': a column and a value"):
        parse_key("Berlin")


def found_state(tmp_path: Path) -> FoundState:
    uri = qualify(tmp_path)
    operator = transform(
        variable("open", "beadline_bucket integer", "n_0 long", "MapState", "at binary"),
        variable("$eventTimers_keyToTimestamp", "k string", "n long", "TimerState"),
    )
    disk = disk_use(open_files(uri), uri, 0)
    keys = {"open": [{"window_start": "2026-11-19T04:00:00.000Z", "n_0": 3, "key_0": None}]}
    one = FoundOperator(operator, disk, {"open": 1234, "timers": 2}, keys)
    return FoundState(uri, 7, [one])


def shown(found: FoundState) -> str:
    out = io.StringIO()
    console = Console(file=out, width=120)
    for view in views(found):
        console.print(view)
    return out.getvalue()


def test_how_state_is_shown_to_people(tmp_path: Path) -> None:
    text = shown(found_state(tmp_path))
    assert f"State of file:{tmp_path}, after epoch 7" in text.replace("\n", "")
    assert "operator 0: transformWithStateInPandas, 2 partitions, 0 bytes in 0 files" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["open", "1,234", "MapState", "(at", "binary)", "→", "(n_0", "bigint)"] in lines
    assert ["timers", "2"] in lines
    assert ["open:", "1", "of", "1,234"] in lines
    assert ["2026-11-19T04:00:00.000Z", "3"] in lines
    assert "$eventTimers" not in text


def test_how_state_is_shown_to_programs(tmp_path: Path) -> None:
    found = as_object(found_state(tmp_path))
    (one,) = json.loads(json.dumps(found))["operators"]
    assert (found["epoch"], one["rows"]) == (7, {"open": 1234, "timers": 2})
    assert [there["name"] for there in one["variables"]] == ["open"]
    assert one["keys"]["open"][0]["n_0"] == 3


def test_a_query_without_state(tmp_path: Path) -> None:
    assert shown(FoundState(qualify(tmp_path), 7, [])) == "The query keeps no state.\n"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (2 * 10**15, "2000.0 TB")],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


# -- events

PROGRESS: dict[str, Any] = {
    "batchId": 4,
    "durationMs": {"addBatch": 12},
    "stateOperators": [
        {
            "operatorName": "stateStoreSave",
            "numRowsTotal": 30,
            "numRowsUpdated": 3,
            "numRowsRemoved": 1,
            "memoryUsedBytes": 1024,
            "numRowsDroppedByWatermark": 2,
        }
    ],
    "observedMetrics": {"beadline.late_rows3": {"beadline.late_rows": 5}, "theirs": {"n": 1}},
}


def test_what_an_event_says_of_the_state() -> None:
    assert figures(PROGRESS) == {
        "operators": [
            {
                "operator": 0,
                "name": "stateStoreSave",
                "rows": 30,
                "updated": 3,
                "removed": 1,
                "memory_bytes": 1024,
                "late_rows": 2,
            }
        ],
        "late_rows": 7,
    }


class SparksProgress:
    """Spark's query, as far as the reporter asks it."""

    def __init__(self, *epochs: int) -> None:
        self.recent = [_Progress({**PROGRESS, "batchId": epoch}) for epoch in epochs]
        self._jsq = self

    def recentProgress(self) -> list[_Progress]:  # noqa: N802 (Spark's name)
        return self.recent


class _Progress:
    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def batchId(self) -> int:  # noqa: N802 (Spark's name)
        return int(self.values["batchId"])

    def json(self) -> str:
        return json.dumps(self.values)


def test_every_epoch_is_reported_once_and_the_last_one_at_the_end() -> None:
    told: list[int] = []
    two = threading.Event()
    query = SparksProgress(0, 1)
    idle = _Progress({**PROGRESS, "batchId": 2, "durationMs": {"triggerExecution": 1}})
    query.recent.append(idle)

    def tell(kind: str, epoch: int | None = None, **details: Any) -> None:
        assert kind == "state"
        assert epoch is not None
        told.append(epoch)
        if len(told) == 2:
            two.set()

    facts = ProgressFacts([StateReader()])
    facts.start(tell, lambda: query)  # type: ignore[arg-type,return-value]
    assert two.wait(10)
    query.recent += SparksProgress(2).recent
    facts.close()
    assert told == [0, 1, 2]


# -- what Spark says in an epoch


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "org.apache.spark.X: [STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does",
            "keeps other state than its checkpoint holds",
        ),
        ("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided", "keeps other state than"),
        (
            "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator",
            "keeps other state than",
        ),
        ("[CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE] Error", "cannot be read"),
        ("[STATE_STORE_OPERATION_OUT_OF_ORDER] Streaming", "not every part of the state"),
        ("[UNSUPPORTED_FEATURE.STORE_BACKEND_NOT_SUPPORTED_FOR_TWS] The", "needs the RocksDB"),
        (
            "[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with name x has",
            "a stateful processor used .*: State variable with name x",
        ),
    ],
)
def test_spark_s_errors_over_state_in_a_sentence(text: str, says: str) -> None:
    found = [said for known in KNOWN_CAUSES if (said := known.sentence(f"{text}\n\tat x.Y"))]
    assert len(found) == 1
    assert re.search(says, found[0]), found
