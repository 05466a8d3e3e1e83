"""Records and committables: every version ever written stays readable, and nothing is guessed.

The golden files are what earlier versions wrote. Never edit one: when an encoding changes, raise
the version, keep reading the old one, and add a file.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import beadline.sinks
from beadline.committable import Committable
from beadline.decisions import Claim, Decision, Pointer, Record, SinkHistory, StoredPart
from beadline.decisions.record import READABLE, VERSION, decode, encode
from beadline.errors import CorruptRecord, MissingExtra
from beadline.ids import PartId, QueryId
from tests.model import server as model_server

GOLDEN = Path(__file__).parents[1] / "golden"
PATH = "file:/checkpoint/beadline/log/7"
SLOT = 7
QUERY = QueryId("orders", "0123456789abcdef" * 2, "file:/checkpoint")
CLAIM = Claim(
    nonce="c" * 32,
    query=QUERY,
    generation=3,
    mode="exactly-once",
    base=41,
    sinks={"files": "file:/out", "warehouse": "sqlite:/w.db#orders"},
    decided=Pointer(6, "d" * 32),
    at_ms=1_700_000_000_000,
    host="machine",
    pid=4711,
    dropped=("kafka",),
    published=42,
)
DECISION = Decision(
    nonce="e" * 32,
    generation=3,
    epoch=42,
    offsets="f" * 64,
    parts=2,
    settings={"spark.sql.shuffle.partitions": "2"},
    sinks={
        "files": (StoredPart(0, 17, 3, 5, None, {"version": 1, "folder": "file:/out"}),),
        "warehouse": (
            StoredPart(0, 18, 3, 5, -77, {"version": 1, "file": "a"}),
            StoredPart(1, 19, 2, 0, 2**63 - 1, {"version": 1, "file": "b ä \"'\n"}),
        ),
    },
    claim=Pointer(5, "c" * 32),
    decided=Pointer(6, "d" * 32),
    started_at_ms=1_700_000_000_001,
    prepared_at_ms=1_700_000_000_002,
    at_ms=1_700_000_000_003,
    finished_at_ms=1_700_000_000_004,
    replays=1,
)
# What version 1 could not know when it was written is what it is read as.
READ_AS: dict[tuple[str, int], Record] = {("claim", 1): CLAIM, ("decision", 1): DECISION}
CLAIM = replace(
    CLAIM,
    histories=(
        SinkHistory("files", "file:/out", "", 3, 41),
        SinkHistory("kafka", "kafka:c/t", "id-1", 0, 7, 9, ((2, 4), (8, 8))),
    ),
    sources={"topic orders": "id-2"},
)
DECISION = replace(
    DECISION, previous={"files": 41}, sources={"topic new": "id-3"}, kinds={"files": "FilePart"}
)
RECORDS: dict[str, Record] = {"claim": CLAIM, "decision": DECISION}
READ_AS |= {("claim", 2): CLAIM, ("decision", 2): DECISION}
CLAIM = replace(CLAIM, words=("kafka",))
RECORDS["claim"] = CLAIM
READ_AS |= {("claim", 4): CLAIM, ("decision", 4): DECISION}
DECISION = replace(
    DECISION,
    event_time={
        "watermark_ms": 1_699_999_000_000,
        "late_rows": 2,
        "inputs": {
            "orders": {
                "rows": 5,
                "newest_ms": 1_700_000_000_000,
                "watermark_ms": 1_699_999_700_000,
                "idle": False,
            },
            "returns": {"rows": 0, "newest_ms": None, "watermark_ms": None, "idle": True},
        },
    },
)
RECORDS["decision"] = DECISION
READ_AS |= {("claim", 7): CLAIM, ("decision", 7): DECISION}


@pytest.mark.parametrize("kind", RECORDS)
def test_the_encoding_has_not_changed(kind: str) -> None:
    golden = (GOLDEN / "records" / f"{kind}.v{VERSION}").read_bytes()
    assert encode(RECORDS[kind], SLOT) == golden, (
        "the bytes of a record have changed: checkpoints of this version exist. Raise VERSION in "
        "decisions/record.py, keep reading the old one, and add a golden file."
    )


@pytest.mark.parametrize("version", READABLE)
@pytest.mark.parametrize("kind", RECORDS)
def test_every_version_stays_readable(kind: str, version: int) -> None:
    golden = (GOLDEN / "records" / f"{kind}.v{version}").read_bytes()
    assert decode(golden, PATH, SLOT) == READ_AS[kind, version]


@pytest.mark.parametrize("record", [CLAIM, DECISION], ids=RECORDS)
def test_round_trip(record: Record) -> None:
    assert decode(encode(record, SLOT), PATH, SLOT) == record
    assert encode(record, SLOT).decode().isascii()


def test_a_stored_part_gets_its_whole_id_back() -> None:
    part = DECISION.part_id(QUERY, "warehouse", DECISION.sinks["warehouse"][1])
    assert part == PartId("orders", QUERY.incarnation, "warehouse", 2, 42, 1, 19)


def refused(data: bytes, slot: int = SLOT) -> str:
    with pytest.raises(CorruptRecord) as caught:
        decode(data, PATH, slot)
    message = str(caught.value)
    assert PATH in message
    assert "nothing was started, committed or aborted" in message
    return message


@pytest.mark.parametrize("record", [CLAIM, DECISION], ids=RECORDS)
def test_a_truncated_record_is_never_guessed_round(record: Record) -> None:
    """At every length; the line end after the body is no part of what was said."""
    whole = encode(record, SLOT)
    for length in range(len(whole) - 1):
        refused(whole[:length])
    assert decode(whole[:-1], PATH, SLOT) == record


@pytest.mark.parametrize("record", [CLAIM, DECISION], ids=RECORDS)
def test_a_flipped_bit_is_noticed(record: Record) -> None:
    """Any bit of any byte."""
    whole = encode(record, SLOT)
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 1 << (place % 8)
        refused(bytes(broken))


def test_an_empty_file_is_no_undecided_epoch() -> None:
    """Rule 3: an interrupted write left one under the final name."""
    assert "0 bytes" in refused(b"")


def test_the_error_of_a_newer_version_says_so() -> None:
    newer = encode(DECISION, SLOT).replace(b"version=7 ", b"version=8 ")
    assert "version 8 is newer" in refused(newer)


def test_a_record_in_another_place_is_noticed() -> None:
    """A file copied over its neighbour is whole, and still not the record of that slot."""
    assert "slot=7" in refused(encode(DECISION, SLOT), slot=8)


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b"null", b'{"kind": "claim"}', b'{"kind": "rumour", "decided": null}']
)
def test_content_that_makes_no_sense_is_named(body: bytes) -> None:
    digest = hashlib.sha256(body).hexdigest()
    header = f"beadline-record version=1 slot={SLOT} sha256={digest}\n"
    assert "cannot be parsed" in refused(header.encode() + body + b"\n")


def committables() -> Iterator[type[Committable]]:
    """Every committable of ours: if you add one, add its golden file."""
    for module in pkgutil.walk_packages(beadline.sinks.__path__, "beadline.sinks."):
        try:
            importlib.import_module(module.name)
        except MissingExtra:
            continue
    assert model_server.ModelCommittable in Committable.__subclasses__()
    waiting = list(Committable.__subclasses__())
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if one.__module__.startswith(("beadline.", "tests.model.")):
            yield one


COMMITTABLES = sorted(committables(), key=lambda one: one.__name__)


@pytest.mark.parametrize("kind", COMMITTABLES, ids=lambda kind: str(kind.__name__))
def test_every_version_of_a_committable_stays_readable(kind: type[Committable]) -> None:
    for version in range(1, kind.version + 1):
        path = GOLDEN / "committables" / f"{kind.__name__}.v{version}.json"
        stored = json.loads(path.read_text("utf-8"))
        assert stored["version"] == version
        value = kind.from_json(stored)
        assert hash(value) == hash(kind.from_json(stored)), "a frozen value holds no lists"
        if version == kind.version:
            assert json.loads(json.dumps(value.to_json())) == stored, (
                f"{kind.__name__} has changed: raise its version, write upgrade(), and add "
                f"a golden file"
            )


def test_no_golden_file_is_forgotten() -> None:
    """A committable that was renamed or removed would make old decisions unreadable."""
    names = {kind.__name__ for kind in COMMITTABLES}
    for path in (GOLDEN / "committables").iterdir():
        match = re.fullmatch(r"(\w+)\.v\d+\.json", path.name)
        assert match is not None, path
        assert match.group(1) in names, path


def test_a_committable_of_a_newer_version_is_refused() -> None:
    with pytest.raises(ValueError, match="newer Beadline"):
        model_server.ModelCommittable.from_json({"version": 2, "transaction": "x"})
    with pytest.raises(ValueError, match="does not know its version 0"):
        model_server.ModelCommittable.from_json({"version": 0, "transaction": "x"})
