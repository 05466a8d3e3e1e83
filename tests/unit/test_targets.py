"""Targets that are not what they were: restored, deleted, taken out and put back, of another kind.

Each is noticed before anything is written, by a start or by the commit that comes next (rule 25),
and what an operator gives up is named. A target that is rightly behind stops nobody.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from beadline.errors import (
    BadSetting,
    BadSink,
    CheckpointProblem,
    CommitBlocked,
    CommitFailed,
    PrepareFailed,
    TargetRestored,
    WrongCheckpoint,
)
from beadline.ids import EpochId, QueryId
from beadline.observe import Event
from beadline.points import hooked
from beadline.protocol.targets import epochs_text
from beadline.sink import BoundSink, Capabilities, CommitResult, Part, Prepared, Seen
from tests.model.model import Crash, ModelWorld, Setting, drive
from tests.model.server import IN_DOUBT, ModelCommittable, ModelServer, ModelSink
from tests.model.world import NAME
from tests.unit.test_identity import die, die_at, refused, run


def rename(world: ModelWorld, old: str, new: str) -> None:
    """Give a sink another name; its target stays."""
    world.servers[new] = world.servers.pop(old)


@pytest.mark.parametrize("moved", [False, True])
def test_a_restored_target_is_noticed_under_another_name_or_address(moved: bool) -> None:
    """A sink that is new to the log may have an old acquaintance behind it."""
    world = ModelWorld()
    run(world, 3)
    lose(world, "ledger1", holds=0)
    name = "ledger1" if moved else "ledger9"
    if moved:
        world.servers["ledger1"].target = "the backup, started elsewhere"
    else:
        rename(world, "ledger1", "ledger9")
    lacks = "of sink 'ledger1' it has acknowledged epoch 2 and now holds epoch 0"
    with refused(world, rf"{lacks}.*rows of epochs 1 to 2 are missing", CheckpointProblem):
        run(world, 4)
    events = listening(world, drop=[name], epochs=4)
    assert told(events, "dropped") == [{"sink": name, "epochs": "epochs 1 to 2"}]
    assert told(events, "claimed")[0]["lacks"] == {name: "epochs 1 to 2"}
    run(world, 5)


@pytest.mark.parametrize("moved", [False, True])
def test_a_whole_target_under_another_name_or_address_is_a_new_sink(moved: bool) -> None:
    """Also where the newest decision was committed, and nobody has noted it yet.

    That one has to be given up all the same: a ledger may answer for another sink of the table.
    """
    world = ModelWorld()
    die(world, "commit.after", 3)
    name = "ledger1" if moved else "ledger9"
    if moved:
        world.servers["ledger1"].target = "moved with all its rows"
    else:
        rename(world, "ledger1", "ledger9")
    with refused(world, "epoch 2 is decided for sink 'ledger1'", CheckpointProblem):
        run(world, 4)
    events = listening(world, drop=["ledger1"], epochs=4)
    assert told(events, "dropped") == [{"sink": "ledger1", "epochs": "epoch 2"}]
    assert len(world.servers[name].rows()) == 16


def test_a_drop_that_stays_in_the_code_is_spent() -> None:
    """It gave up what one start had found, not what becomes of the target ever after."""
    world = ModelWorld()
    drive(world, drop=["ledger1"], epochs=3)
    lose(world, "ledger1", holds=0)
    for _ in range(2):
        with refused(world, "drop='ledger1' was given to the previous start", CheckpointProblem):
            drive(world, drop=["ledger1"], epochs=4)
    with refused(world, "rows of epochs 1 to 2 are missing", CheckpointProblem):
        run(world, 4)
    with refused(world, r"Name the last.*drop=\[.ledger1@2.\]", CheckpointProblem):
        drive(world, drop=["ledger1"], epochs=4)
    events = listening(world, drop=["ledger1@2"], epochs=4)
    assert told(events, "dropped") == [{"sink": "ledger1", "epochs": "epochs 1 to 2"}]
    run(world, 5)


@pytest.mark.parametrize("point", ["claim.after", "recover.before"])
def test_a_drop_whose_start_dies_before_it_gives_anything_up(point: str) -> None:
    """Its name is spent with the claim, so the error says what works now."""
    world = ModelWorld()
    die(world, "decide.after", 2)
    world.servers["ledger1"].stuck = [1]
    with pytest.raises(Crash), hooked(lambda name: die_at(point, name)):
        drive(world, drop=["ledger1"], epochs=3)
    with pytest.raises(CommitFailed, match=r"never takes.*drop=\[.ledger1@1.\]"):
        drive(world, drop=["ledger1"], epochs=3)
    events = listening(world, drop=["ledger1@1"], epochs=3)
    assert told(events, "dropped") == [{"sink": "ledger1", "epochs": "epoch 1"}]
    assert sorted(world.servers["ledger1"].rows()) == sorted(world.rows(0) + world.rows(2))


class Unsaid(ModelSink):
    """Looks at what it has acknowledged, and does not declare that it remembers it."""

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        return replace(super().check(schema, query), remembers=False)


@pytest.mark.parametrize("word", ["ledger1", "ledger1@3"])
def test_what_was_given_up_is_not_asked_for_again(word: str) -> None:
    """The start cannot compare what such a sink holds; its commits would, for ever."""
    world = ModelWorld(Setting(sink=Unsaid))
    run(world, 3)
    lose(world, "ledger1", holds=0)
    for _ in range(2):
        with pytest.raises(TargetRestored, match="epoch 2 before and now holds epoch 0"):
            run(world, 4)
    drive(world, drop=[word], epochs=4)
    for epochs in (5, 6):
        run(world, epochs)
    kept = [0, 3, 4, 5] if word == "ledger1" else [0, 4, 5]
    rows = [row for epoch in kept for row in world.rows(epoch)]
    assert sorted(world.servers["ledger1"].rows()) == sorted(rows)


class Denied(ModelSink):
    """Its password is wrong, as long as ``closed`` is among what its server keeps."""

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[ModelCommittable]]) -> CommitResult:
        """Refuse the user, whatever the epoch is."""
        if "closed" in self.server.seen:
            raise CommitBlocked("it refuses this user.")
        return super().commit(epoch, parts)


def test_a_name_gives_up_no_epoch_over_what_a_person_can_correct() -> None:
    """It gives up what the target lacks; the decided epoch is whole, and waits for a password."""
    world = ModelWorld(Setting(sink=Denied))
    die(world, "decide.after", 3)
    server = world.servers["ledger1"]
    lose(world, "ledger1", holds=0)
    server.seen["closed"] = server.seen[NAME]
    events: list[Event] = []
    with pytest.raises(CommitBlocked, match=r"gave up nothing of epoch 2.*\[\"ledger1@2\"\]"):
        drive(world, drop=["ledger1"], epochs=3, listener=events.append)
    assert told(events, "dropped") == [{"sink": "ledger1", "epochs": "epoch 1"}]
    with pytest.raises(CommitBlocked, match="drop='ledger1' was given to the previous start"):
        drive(world, drop=["ledger1"], epochs=3)
    del server.seen["closed"]
    run(world, 3)
    assert sorted(server.rows()) == sorted(world.rows(0) + world.rows(2))


class Unasked(ModelSink):
    """Its server is away at a start."""

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        raise ConnectionRefusedError("nobody there")


def test_a_target_that_cannot_be_asked_is_named() -> None:
    world = ModelWorld(Setting(sink=Unasked))
    with pytest.raises(BadSink, match=r"sink '.*' \(.*\) cannot be asked what it holds: Connec"):
        run(world, 1)
    assert not world.store.slots()


def test_a_name_and_an_epoch_give_up_what_a_person_could_correct() -> None:
    """A server that nobody will ever be let into again is no reason to stop for ever."""
    world = ModelWorld(Setting(sink=Denied))
    die(world, "decide.after", 3)
    server = world.servers["ledger1"]
    server.seen["closed"] = server.seen[NAME]
    events = listening(world, drop=["ledger1@2"], epochs=3)
    assert told(events, "dropped") == [{"sink": "ledger1", "epochs": "epoch 2"}]


class Forgetful(ModelSink):
    """Its ledger answers for the query; its commits look for the row of this sink (by mistake)."""

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Return what was never lost."""
        return self.server.seen.get("other") or super().last_seen(query, name)


def test_a_commit_that_finds_epochs_missing_gives_up_those_and_no_more() -> None:
    """What is missing is one question; whether the decided epoch can be committed is another."""
    world = ModelWorld(Setting(sink=Forgetful))
    die(world, "decide.after", 3)
    server = world.servers["ledger1"]
    server.seen["other"] = server.seen[NAME]
    lose(world, "ledger1", holds=0)
    with pytest.raises(TargetRestored, match="epoch 1 before and now holds epoch 0"):
        run(world, 3)
    events = listening(world, drop=["ledger1"], epochs=3)
    assert told(events, "dropped") == [{"sink": "ledger1", "epochs": "epoch 1"}]
    del server.seen["other"]
    for epochs in (4, 5):
        run(world, epochs)
    rows = [row for epoch in (0, 2, 3, 4) for row in world.rows(epoch)]
    assert sorted(server.rows()) == sorted(rows)


def test_a_sink_beside_another_one_on_its_table_is_no_older_copy() -> None:
    """What a ledger answers there is the other one's, and says nothing of a sink that is gone."""
    world = ModelWorld(Setting(dead_letter="ledger"))
    run(world, 2)
    quiet = world.servers["ledger-dead-letter"]
    assert quiet.seen[NAME].epoch == 0, "rightly: it was given no rows since"
    del world.servers["ledger1"]
    world.servers["ledger7"] = quiet
    assert told(listening(world, epochs=2), "added") == [{"sink": "ledger7"}]


def test_a_drop_that_stays_in_the_code_gives_up_no_decided_epoch() -> None:
    """The server may only be down for a while; a name with the epoch says what is meant."""
    world = ModelWorld()
    drive(world, drop=["ledger1"], epochs=1)
    with pytest.raises(Crash), hooked(lambda point: die_at("decide.after", point)):
        drive(world, drop=["ledger1"], epochs=3)
    world.servers["ledger1"].stuck = [1]
    with pytest.raises(CommitFailed, match="never"):
        drive(world, drop=["ledger1"], epochs=3)
    events = listening(world, drop=["ledger1", "ledger1@1"], epochs=3)
    assert told(events, "dropped") == [{"sink": "ledger1", "epochs": "epoch 1"}]


@pytest.mark.parametrize("held", [None, 0])
def test_a_restored_target_stops_the_start(held: int | None) -> None:
    """A backup was restored, or a replica took over that lagged behind."""
    world = ModelWorld()
    run(world, 2)
    seen = world.servers["ledger1"].seen
    newest = seen.pop(NAME)
    if held is not None:
        seen[NAME] = replace(newest, epoch=held, nonce="")
    has = "nothing of this query" if held is None else f"epoch {held}"
    lacks = "epochs 0 to 1" if held is None else "epoch 1"
    back = (
        rf"'ledger1' \(ledger1\): it has acknowledged epoch 1 and now holds {has}.*"
        rf"rows of {lacks} are missing.*drop=.\"ledger1"
    )
    with refused(world, back, CheckpointProblem):
        run(world, 3)
    with refused(world, back, CheckpointProblem):
        drive(world, drop=["parts0"], epochs=3)
    seen[NAME] = newest  # restored
    run(world, 3)
    world.check_end()


def lose(world: ModelWorld, name: str, holds: int = -1) -> None:
    """Restore a server from a backup: rows and ledger of newer epochs are gone."""
    server = world.servers[name]
    newest = server.seen.pop(NAME)
    for part in [part for part in server.visible if part.epoch > holds]:
        del server.visible[part]
    if holds >= 0:
        server.seen[NAME] = replace(newest, epoch=holds, nonce="")


def listening(world: ModelWorld, **arguments: object) -> list[Event]:
    """Start and run a driver; return what it told."""
    events: list[Event] = []
    drive(world, listener=events.append, **arguments)  # type: ignore[arg-type]
    return events


def told(events: list[Event], kind: str) -> list[dict[str, object]]:
    return [event.details for event in events if event.kind == kind]


def test_a_restored_target_is_accepted_once() -> None:
    """Said once: the next start does not ask again, though nothing was decided in between."""
    world = ModelWorld()
    run(world, 3)
    lose(world, "ledger1", holds=0)
    events = listening(world, drop=["ledger1"], epochs=3)
    assert told(events, "dropped") == [{"sink": "ledger1", "epochs": "epochs 1 to 2"}]
    run(world, 3)
    run(world, 4)
    rows = world.rows(0) + world.rows(3)
    assert sorted(world.servers["ledger1"].rows()) == sorted(rows)


@pytest.mark.parametrize("starts", [1, 2])
def test_a_target_is_restored_after_a_start_that_decided_nothing(starts: int) -> None:
    """Jobs that run what is available often find nothing, and they are starts too."""
    world = ModelWorld()
    run(world, 2)
    for _ in range(starts):
        run(world, 2)
    lose(world, "ledger1", holds=0)
    with refused(world, "has acknowledged epoch 1 and now holds epoch 0", CheckpointProblem):
        run(world, 3)


@pytest.mark.parametrize("name", ["parts0", "ledger1"])
def test_a_target_is_restored_behind_an_unfinished_decision(name: str) -> None:
    """The decided epoch is not missing; the one before it is."""
    world = ModelWorld()
    die(world, "decide.after", 3)
    lose(world, name, holds=0)
    with refused(world, "has acknowledged epoch 1 and now holds epoch 0", CheckpointProblem):
        run(world, 3)
    events = listening(world, drop=[name], epochs=3)
    assert told(events, "dropped") == [{"sink": name, "epochs": "epoch 1"}]
    # The decided epoch is finished all the same: it can be, so it is not given up.
    assert sorted(world.servers[name].rows()) == sorted(world.rows(0) + world.rows(2))


@pytest.mark.parametrize("name", ["parts0", "ledger1"])
def test_a_replica_that_lags_takes_over_between_two_epochs(name: str) -> None:
    """The transaction that would write finds it, and writes nothing."""
    world = ModelWorld()

    def hook(point: str) -> None:
        if point == "commit.after" and world.servers[name].seen[NAME].epoch == 1:
            lose(world, name, holds=0)

    lacks = rf"sink '{name}' .*epoch 2: .*has acknowledged epoch 1 before and now holds epoch 0"
    with pytest.raises(TargetRestored, match=lacks), hooked(hook):
        run(world, 4)
    assert sorted(world.servers[name].rows()) == sorted(world.rows(0))
    with refused(world, "has acknowledged epoch 1 and now holds epoch 0", CheckpointProblem):
        run(world, 4)


def test_a_decided_epoch_behind_a_crash_is_not_missing() -> None:
    world = ModelWorld()
    die(world, "decide.after", 2)
    run(world, 3)
    world.check_end()


def test_epochs_without_rows_leave_a_target_where_it_is() -> None:
    """A dead-letter sink that is given nothing is behind, and has lost nothing."""
    world = ModelWorld(Setting(epochs=4, dead_letter="ledger"))
    for epochs in range(1, 5):
        run(world, epochs)
        if epochs == 2:
            assert world.servers["ledger-dead-letter"].seen[NAME].epoch == 0
    world.check_end()


def test_a_sink_that_was_moved_and_brought_nothing_yet_has_lost_nothing() -> None:
    """It is known where an epoch went only by the claim under which it was decided."""
    world = ModelWorld()
    run(world, 1)
    world.move("ledger1")
    for epochs in (1, 1, 3):
        run(world, epochs)
    assert len(world.servers["ledger1"].rows()) == 8


def test_a_sink_that_was_dropped_and_comes_back_has_lost_nothing() -> None:
    world = ModelWorld()
    die(world, "decide.after", 2)
    drive(world, names=["parts0"], drop=["ledger1"], epochs=2)
    for epochs in (2, 2, 3):
        run(world, epochs)
    assert sorted(world.servers["ledger1"].rows()) == sorted(world.rows(0) + world.rows(2))


def test_a_sink_put_back_has_a_hole() -> None:
    """Which epochs it lacks is said; to continue takes drop=, which is remembered."""
    world = ModelWorld()
    run(world, 1)
    assert told(listening(world, names=["parts0"], epochs=3), "removed") == [{"sink": "ledger1"}]
    assert not told(listening(world, names=["parts0"], epochs=3), "removed")
    hole = r"removed from the query after epoch 0. Its rows of epochs 1 to 2 are missing"
    with refused(world, hole, CheckpointProblem):
        run(world, 4)
    events = listening(world, drop=["ledger1"], epochs=4)
    assert told(events, "dropped") == [{"sink": "ledger1", "epochs": "epochs 1 to 2"}]
    assert told(listening(world, epochs=5), "claimed")[0]["lacks"] == {"ledger1": "epochs 1 to 2"}
    rows = [row for epoch in (0, 3, 4) for row in world.rows(epoch)]
    assert sorted(world.servers["ledger1"].rows()) == sorted(rows)


def test_a_hole_of_one_epoch_is_a_hole() -> None:
    world = ModelWorld()
    run(world, 1)
    drive(world, names=["parts0"], epochs=2)
    with refused(world, "Its rows of epoch 1 are missing", CheckpointProblem):
        run(world, 3)


def test_a_sink_that_is_added_says_from_where_it_has_rows() -> None:
    world = ModelWorld()
    drive(world, names=["parts0"], epochs=2)
    events = listening(world, epochs=3)
    assert [e.epoch for e in events if e.kind == "added"] == [2]
    assert told(events, "claimed") == [{"since": {"parts0": 0, "ledger1": 2}, "lacks": {}}]
    assert not told(listening(world, epochs=4), "added")


def test_a_sink_that_was_added_late_lacks_nothing_from_before() -> None:
    world = ModelWorld()
    drive(world, names=["parts0"], epochs=2)
    run(world, 4)
    lose(world, "ledger1")
    with refused(world, "Its rows of epochs 2 to 3 are missing", CheckpointProblem):
        run(world, 5)
    events = listening(world, drop=["ledger1"], epochs=5)
    assert told(events, "dropped") == [{"sink": "ledger1", "epochs": "epochs 2 to 3"}]
    assert told(listening(world, epochs=5), "claimed")[0]["lacks"] == {"ledger1": "epochs 2 to 3"}


def test_epochs_that_are_lost_twice_are_reported_once() -> None:
    world = ModelWorld()
    run(world, 3)
    lose(world, "ledger1", holds=0)
    drive(world, drop=["ledger1"], epochs=5)
    run(world, 5)
    lose(world, "ledger1")
    events = listening(world, drop=["ledger1"], epochs=6)
    assert told(events, "claimed")[0]["lacks"] == {"ledger1": "epochs 0 to 4"}


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([(3, 3)], "epoch 3"),
        ([(3, 3), (3, 3)], "epoch 3"),
        ([(2, 7), (3, 4)], "epochs 2 to 7"),
        ([(3, 4), (2, 3)], "epochs 2 to 4"),
        ([(2, 3), (4, 4)], "epochs 2 to 4"),
        ([(7, 9), (3, 3)], "epochs 3, 7 to 9"),
    ],
)
def test_spans_of_epochs_are_shown_each_once(spans: list[tuple[int, int]], text: str) -> None:
    assert epochs_text(spans) == text


def test_each_start_logs_what_a_sink_does_not_have(caplog: pytest.LogCaptureFixture) -> None:
    """Also of one that was added by an earlier start; a warning only where rows are missing."""
    world = ModelWorld()
    drive(world, names=["parts0"], epochs=2)
    run(world, 3)
    caplog.set_level("INFO", logger="beadline")

    def said(level: str) -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.levelname == level]
        caplog.clear()
        return [text for text in found if text.startswith("query model: sink")]

    run(world, 3)
    assert said("INFO") == ["query model: sink ledger1 has rows from epoch 2 on"]
    drive(world, names=["parts0"], epochs=4)
    drive(world, drop=["ledger1"], epochs=4)
    caplog.clear()
    run(world, 5)
    lacks = "query model: sink ledger1 has rows from epoch 2 on and lacks the rows of epoch 3"
    assert said("WARNING") == [lacks]


class OtherCommittable(ModelCommittable):
    """Of another kind of sink."""


class OtherSink(ModelSink):
    committable = OtherCommittable


class OtherKind(ModelWorld):
    """The first sink becomes another kind under the old name."""

    changed = False

    def bound(self, names: Collection[str] = ()) -> list[BoundSink]:
        first, *rest = super().bound(names)
        if self.changed:
            first = replace(first, sink=OtherSink(self.servers["parts0"]))
        return [first, *rest]


def test_another_kind_of_sink_under_an_old_name() -> None:
    """What was decided for the old kind can be finished by nobody else: said before the claim."""
    world = OtherKind()
    die(world, "decide.after", 2)
    world.changed = True
    kind = (
        r"decided for sink 'parts0' \(parts0\) as ModelCommittable.*"
        r"another kind \(OtherCommittable\)"
    )
    with refused(world, kind, CheckpointProblem):
        run(world, 3)
    drive(world, drop=["parts0@1"], epochs=3)
    assert sorted(world.servers["parts0"].rows()) == sorted(world.rows(0) + world.rows(2))


@pytest.mark.parametrize("moved", [False, True])
def test_another_kind_of_sink_when_all_is_finished(moved: bool) -> None:
    """Nothing asks it to read what the old kind left in the log."""
    world = OtherKind()
    run(world, 2)
    world.changed = True
    if moved:
        world.move("parts0")
    run(world, 3)
    assert len(world.servers["parts0"].rows()) == (4 if moved else 12)


@pytest.mark.parametrize("error", [CommitFailed, TargetRestored])
@pytest.mark.parametrize("word", ["ledger1", "ledger1@1"])
def test_a_decided_epoch_is_given_up_for_a_sink_that_is_there(
    word: str, error: type[CommitFailed]
) -> None:
    """The way out for an operator whose target will never take it; nothing of it stays behind.

    Also where a part of that very epoch went with the target: no other epoch is given up.
    """
    world = ModelWorld()
    die(world, "decide.after", 2)
    world.servers["ledger1"].stuck = [1]
    world.servers["ledger1"].stuck_by = error
    with pytest.raises(CommitFailed, match="never"):
        run(world, 3)
    events = listening(world, drop=[word], epochs=3)
    assert told(events, "dropped") == [{"sink": "ledger1", "epochs": "epoch 1"}]
    assert "ledger1" not in told(events, "committed")[0]["rows"]  # type: ignore[operator]
    server = world.servers["ledger1"]
    assert sorted(server.rows()) == sorted(world.rows(0) + world.rows(2))
    assert not server.prepared
    assert len(world.servers["parts0"].rows()) == 12


def test_a_drop_that_was_left_in_the_code_gives_up_nothing_that_can_be_shown() -> None:
    world = ModelWorld()
    die(world, "decide.after", 2)
    world.servers["ledger1"].stuck = [1]
    with pytest.raises(Crash), hooked(lambda point: die_at("decide.after", point)):
        drive(world, drop=["ledger1"], epochs=3)
    events = listening(world, drop=["ledger1", "ledger1@1"], epochs=3)
    assert not told(events, "dropped")
    assert sorted(world.servers["ledger1"].rows()) == sorted(world.rows(0) + world.rows(2))


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("nope", "knows a sink of that name. Known: ledger1, parts0"),
        ("ledger1@two", "the part after @ must be the number"),
        ("ledger1@7", "the newest decided epoch is 1"),
    ],
)
def test_a_drop_that_names_nothing_is_refused(word: str, why: str) -> None:
    world = ModelWorld()
    run(world, 2)
    with refused(world, why, BadSetting):
        drive(world, drop=[word], epochs=3)


def test_a_target_that_was_deleted_and_made_again() -> None:
    """It has the same name and the same rows beside it, and another id."""
    world = ModelWorld()
    world.servers["parts0"].instance = "one"
    run(world, 2)
    world.servers["parts0"].instance = "two"
    made = r"deleted and recreated \(its id was one and is now two\).*epochs 0 to 1 are missing"
    with refused(world, made, CheckpointProblem):
        run(world, 3)
    drive(world, drop=["parts0"], epochs=3)
    run(world, 4)


class ToldCommittable(ModelCommittable):
    """It says where it was written, which the server does not tell any more."""

    @property
    def instance(self) -> str:
        return "two"


class SilentSink(ModelSink):
    committable = ToldCommittable

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> ModelCommittable | None:
        prepared = super().prepare(rows, part)
        return prepared and ToldCommittable(prepared.transaction)

    def instance_now(self) -> str:
        return ""


class SilentWorld(ModelWorld):
    """The first sink's parts know where they are, from the second driver on."""

    changed = False

    def bound(self, names: Collection[str] = ()) -> list[BoundSink]:
        first, *rest = super().bound(names)
        if self.changed:
            first = replace(first, sink=SilentSink(self.servers["parts0"]))
        return [first, *rest]


def made_again(world: ModelWorld, epoch: int) -> Callable[[str], None]:
    """Make the first sink's target again when an epoch is being prepared."""

    def hook(point: str) -> None:
        decided = world.store.decisions
        if point == "prepare.before" and (decided[-1].epoch if decided else -1) == epoch - 1:
            world.servers["parts0"].instance = "two"

    return hook


def test_a_target_that_is_made_again_while_the_query_runs() -> None:
    """Nothing of the epoch that would be the first in the new one is decided or shown."""
    world = ModelWorld()
    world.servers["parts0"].instance = "one"
    lacks = (
        r"epoch 2, sink 'parts0' \(parts0\): while the query ran it was deleted and recreated "
        r"\(its id was one and is now two\).*epochs 0 to 1 are missing.*drop=.*"
        "Nothing of the epoch is decided"
    )
    with pytest.raises(PrepareFailed, match=lacks), hooked(made_again(world, 2)):
        run(world, 4)
    assert world.store.decisions[-1].epoch == 1
    assert not any(server.prepared for server in world.servers.values())
    assert len(world.servers["parts0"].rows()) == 8
    with refused(world, "Its rows of epochs 0 to 1 are missing", CheckpointProblem):
        run(world, 4)


def test_a_part_of_a_target_that_was_created_again_is_recognised() -> None:
    """Where the target does not tell at the moment."""
    world = SilentWorld()
    world.servers["parts0"].instance = "one"
    run(world, 2)
    world.changed = True
    with pytest.raises(PrepareFailed, match="its id was one and is now two"):
        run(world, 4)
    assert world.store.decisions[-1].epoch == 1
    assert not any(server.prepared for server in world.servers.values())


def test_a_target_that_is_made_again_before_anything_was_in_it() -> None:
    """Nothing is missing, so the next start continues."""
    world = ModelWorld()
    world.servers["parts0"].instance = "one"
    with pytest.raises(PrepareFailed, match="Start again"), hooked(made_again(world, 0)):
        run(world, 2)
    run(world, 2)
    assert len(world.servers["parts0"].rows()) == 8


def test_a_replay_into_a_target_that_was_made_again() -> None:
    """The epoch stays decided, and its other parts are gone too."""
    world = ModelWorld()
    server = world.servers["parts0"]
    server.instance = "one"

    def hook(point: str) -> None:
        if point == "decide.after" and not server.expired:
            server.expire(next(iter(server.prepared)))
        elif point == "prepare.before" and server.expired:
            server.instance = "two"

    lost = "rows of epoch 0 are missing.*Epoch 0 stays decided"
    with pytest.raises(PrepareFailed, match=lost), hooked(hook):
        run(world, 2)


def test_a_source_that_was_deleted_and_made_again() -> None:
    """Its positions are not those of the checkpoint: rows below them would never be read."""
    world = ModelWorld()
    run(world, 2)
    world.read["source"] = "second"
    made = r"reads source, which was deleted and recreated \(its id was first and is now second"
    with refused(world, made):
        run(world, 3)
    world.read["source"] = "first"

    def hook(point: str) -> None:
        if point == "prepare.after":
            world.read["source"] = "second"

    with pytest.raises(WrongCheckpoint, match=made), hooked(hook):
        run(world, 3)
    assert world.store.decisions[-1].epoch == 1
    assert not any(server.prepared for server in world.servers.values())


def test_what_is_decided_is_finished_before_a_changed_source_is_refused() -> None:
    """Its rows need the source no more, and readers wait for them (rule 15)."""
    world = ModelWorld()
    die(world, "decide.after", 2)
    world.read["source"] = "second"
    made = "deleted and recreated.*The rows of epoch 1, which was decided before, are complete"
    for _ in range(2):
        with pytest.raises(WrongCheckpoint, match=made):
            run(world, 3)
        assert all(len(server.rows()) == 8 for server in world.servers.values())
    world.read["source"] = "first"
    run(world, 3)


@pytest.mark.parametrize("decided", [False, True])
def test_orphans_of_a_sink_that_was_renamed(decided: bool) -> None:
    """Nobody else would sweep them, and they hold locks (rule 27)."""
    world = ModelWorld(Setting(kinds=("parts", "parts")))
    die(world, "decide.after" if decided else "decide.before", 2)
    world.servers["renamed"] = world.servers.pop("parts1")
    assert world.servers["renamed"].prepared
    drive(world, drop=["parts1"] if decided else [], epochs=3)
    assert not world.servers["renamed"].prepared
    # What the sink beside it prepared was not touched: it is the sink's own.
    assert len(world.servers["parts0"].rows()) == 12


@pytest.mark.parametrize("decided", [False, True])
def test_orphans_of_a_sink_that_was_moved_and_kept_its_name(decided: bool) -> None:
    """The sink of that name looks elsewhere now; the one that stayed finds them (rule 27)."""
    world = ModelWorld(Setting(kinds=("parts", "parts")))
    old = world.servers["parts1"] = world.servers["parts0"]
    die(world, "decide.after" if decided else "decide.before", 2)
    world.servers["parts1"] = ModelServer("elsewhere")
    assert {part.sink for part in old.prepared} == {"parts0", "parts1"}
    drive(world, drop=["parts1"] if decided else [], epochs=3)
    assert not old.prepared
    rows = [row for part, held in old.visible.items() if part.sink == "parts0" for row in held]
    assert len(rows) == 12


def test_orphans_of_a_sink_whose_name_is_used_again() -> None:
    """Two sinks have changed names: each finds what the other's name has left."""
    world = ModelWorld(Setting(kinds=("parts", "parts")))
    die(world, "decide.before", 2)
    left, right = world.servers["parts0"], world.servers["parts1"]
    world.servers = {"parts0": right, "parts1": left}
    assert left.prepared
    assert right.prepared
    run(world, 2)
    assert not left.prepared
    assert not right.prepared


def test_what_a_system_that_does_not_answer_may_list_is_left() -> None:
    """Its sink may know more of a part than the sink beside it; the next start sweeps."""
    world = ModelWorld(Setting(kinds=("parts", "parts")))
    shared = world.servers["parts1"] = world.servers["parts0"]
    die(world, "decide.before", 2)

    def away(point: str) -> None:
        if point == IN_DOUBT and next(asked) == 1:
            raise OSError("away")

    asked = itertools.count()
    with pytest.raises(CommitFailed, match=r"'parts1': sweeping.*away"), hooked(away):
        run(world, 2)
    assert {part.sink for part in shared.prepared} == {"parts1"}
    run(world, 2)
    assert not shared.prepared


def test_the_warning_says_what_became_of_a_sink(caplog: pytest.LogCaptureFixture) -> None:
    world = ModelWorld(Setting(kinds=("parts", "parts")))
    run(world, 1)
    world.move("parts1")
    run(world, 2)
    said = "sink parts1 (parts1) now writes to parts1+. If a crash left something prepared there"
    assert said in caplog.text
    drive(world, names=["parts0"], epochs=3)
    assert "sink parts1 (parts1+) was removed from the query" in caplog.text


def test_the_advice_for_orphans_of_a_sink_that_was_taken_out_followed_to_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No sink beside it uses its system, so nobody else sweeps there."""
    world = ModelWorld(Setting(kinds=("parts", "parts")))
    die(world, "decide.before", 2)
    left = world.servers["parts1"]
    for epochs in (2, 3):
        drive(world, names=["parts0"], epochs=epochs)
        assert left.prepared
    advice = 'start once with that sink and drop=["parts1"]'
    assert sum(advice in record.getMessage() for record in caplog.records) == 1
    with refused(world, "'parts1'.*removed from the query after epoch 0", CheckpointProblem):
        run(world, 4)  # with that sink alone: it is not let in, and nothing is swept
    drive(world, drop=["parts1"], epochs=4)
    assert not left.prepared
    drive(world, names=["parts0"], epochs=5)
    assert len(world.servers["parts0"].rows()) == 20
    assert len(left.rows()) == 8  # of epoch 0, and of the start that swept
