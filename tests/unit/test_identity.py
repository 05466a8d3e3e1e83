"""Log, checkpoint and sinks must tell of the same query; else an error that explains the choices.

Each test does to a checkpoint what people do to checkpoints. After every refusal the world is
untouched, so that undoing the mistake is enough.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from beadline.decisions import DecisionLog
from beadline.errors import (
    NEW_QUERY,
    BeadlineError,
    CheckpointProblem,
    Fenced,
    WrongCheckpoint,
)
from beadline.ids import EpochId, QueryId
from beadline.points import hooked
from beadline.protocol import identity
from beadline.protocol.coordinator import Coordinator
from beadline.protocol.run import Run
from beadline.sink import Seen, holds
from tests.model.model import Crash, ModelStore, ModelWorld, Setting, at_least_once, drive
from tests.model.world import CHECKPOINT, NAME


def run(world: ModelWorld, epochs: int) -> None:
    drive(world, epochs=epochs)


def die(world: ModelWorld, point: str, times: int = 1) -> None:
    """Run a driver until it reaches a point for the ``times``-th time."""
    left = times

    def hook(name: str) -> None:
        nonlocal left
        left -= name == point
        if left == 0:
            raise Crash(point)

    with pytest.raises(Crash), hooked(hook):
        drive(world, epochs=100)


def everything(world: ModelWorld) -> object:
    """All that a refused start must not change."""
    servers = [(dict(s.prepared), dict(s.visible), dict(s.seen)) for s in world.servers.values()]
    return dict(world.store.data), dict(world.planned), set(world.committed), servers


@contextmanager
def refused(
    world: ModelWorld, match: str, kind: type[BeadlineError] = WrongCheckpoint
) -> Iterator[pytest.ExceptionInfo[BeadlineError]]:
    before = copy.deepcopy(everything(world))
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert "Nothing was written" in str(caught.value)
    assert everything(world) == before


def test_spark_without_a_log() -> None:
    """The log's folder was deleted, or the query ran without Beadline before."""
    world = ModelWorld()
    run(world, 2)
    world.store = ModelStore()
    with refused(world, "holds Spark's progress up to epoch 1 but no decision log") as said:
        run(world, 3)
    advises_what_keeps_rows_right(said, "Restore the log from a backup.")


def test_spark_planned_without_a_log() -> None:
    world = ModelWorld()
    world.planned[0] = (0, 4)
    with refused(world, "no decision log"):
        run(world, 3)


def test_the_checkpoint_was_deleted() -> None:
    """The sinks remember: the source's rows would be written a second time."""
    world = ModelWorld()
    run(world, 2)
    world.store = ModelStore()
    world.planned.clear()
    world.committed.clear()
    with refused(world, "already holds epoch 1 of another query named 'model'") as said:
        run(world, 3)
    advises_what_keeps_rows_right(said, "Restore the old checkpoint, and all rows stay correct.")


def start_as(world: ModelWorld, name: str, checkpoint: str) -> None:
    log = DecisionLog(world.store)
    Coordinator(Run(name, checkpoint, world.bound(), log, world)).start()


def test_the_checkpoint_was_copied() -> None:
    world = ModelWorld()
    run(world, 1)
    with refused(world, f"was written for {CHECKPOINT}: the folder was copied or moved") as said:
        start_as(world, NAME, "memory:/copy")
    advises_what_keeps_rows_right(said, "Move it back, and all rows stay correct.")


def test_the_query_has_another_name() -> None:
    world = ModelWorld()
    run(world, 1)
    with refused(world, "belongs to query 'model', not to 'other'") as said:
        start_as(world, "other", CHECKPOINT)
    advises_what_keeps_rows_right(said, "Start it as 'model', and all rows stay correct.")


def test_a_target_learns_at_a_commit_that_the_checkpoint_is_another_one() -> None:
    theirs, ours = QueryId(NAME, "1" * 32, "memory:/theirs"), QueryId(NAME, "2" * 32, CHECKPOINT)
    with pytest.raises(WrongCheckpoint) as said:
        holds(Seen(theirs.incarnation, 3), EpochId(ours, 4, "nonce", 1), "table t")
    advises_what_keeps_rows_right(said, "If both are one query, give it its old checkpoint back")


def advises_what_keeps_rows_right(said: pytest.ExceptionInfo[BeadlineError], first: str) -> None:
    """Restore first; a new name or checkpoint only with what it means, and emptied targets."""
    before, advised, after = str(said.value).partition(NEW_QUERY)
    assert first in before
    assert "a second time" in advised
    assert "targets that were emptied" in advised
    for text in (before, after):
        assert not re.search("(another|new|own) name|(empty|new|own) checkpoint", text)


def test_two_queries_of_one_name_share_a_sink() -> None:
    world, other = ModelWorld(), ModelWorld()
    run(world, 1)
    other.servers = world.servers
    with refused(other, "two queries share the name"):
        run(other, 1)


def test_checkpoint_and_log_were_rewound_together() -> None:
    """A consistent backup of an older state; only the sinks know better."""
    world = ModelWorld()
    run(world, 2)
    store, planned = copy.deepcopy(world.store), dict(world.planned)
    run(world, 4)
    world.store, world.planned, world.committed = store, planned, {0, 1}
    with refused(world, "holds epoch 3, which does not match the decision log"):
        run(world, 5)


def test_spark_was_rewound() -> None:
    world = ModelWorld()
    run(world, 3)
    world.committed -= {1, 2}
    with refused(world, "is at epoch 0, but the decision log is certain up to 2"):
        run(world, 5)


def test_the_log_was_rewound() -> None:
    world = ModelWorld()
    run(world, 2)
    store = copy.deepcopy(world.store)
    run(world, 3)
    world.store = store
    with refused(world, "is at epoch 2, but the decision log ends at 1"):
        run(world, 5)


@pytest.mark.parametrize("planned", [None, (4, 9)], ids=["missing", "others"])
def test_the_offsets_of_a_decided_epoch_are_not_those(planned: tuple[int, int] | None) -> None:
    world = ModelWorld()
    die(world, "decide.after", 2)
    del world.planned[1]
    if planned:
        world.planned[1] = planned
    with refused(world, "source positions of epoch 1"):
        run(world, 3)


def test_the_decided_epoch_is_another() -> None:
    """Same epoch, same incarnation, another nonce: two histories of one checkpoint met."""
    world = ModelWorld()
    die(world, "prepare.before", 2)
    store = copy.deepcopy(world.store)
    die(world, "commit.after")
    world.store, theirs = store, world.servers
    world.servers = copy.deepcopy(theirs)
    for server in world.servers.values():
        server.seen[NAME] = replace(server.seen[NAME], epoch=0, nonce="")
    die(world, "decide.after")
    world.servers = theirs
    with refused(world, "holds epoch 1, which does not match the decision log"):
        run(world, 3)


@pytest.mark.parametrize(
    ("doubt", "says"),
    [
        (lambda world: world.committed.add(7), "the log was rewound"),
        (lambda world: world.committed.clear(), "the checkpoint was rewound or partly deleted"),
        (lambda world: world.planned.clear(), "positions of epoch 1 in Spark's checkpoint are"),
    ],
)
def test_a_checkpoint_that_is_doubted_while_the_query_runs(
    doubt: Callable[[ModelWorld], object], says: str
) -> None:
    """Spark is started again during a run: by then epochs have been written."""
    world = ModelWorld()
    run(world, 2)
    state = DecisionLog(world.store).open()
    doubt(world)
    meaning = "Epochs up to 1 are complete; no later one is decided."
    with pytest.raises(WrongCheckpoint, match=f"{says}.*one backup. {meaning}$"):
        identity.check_progress(state, world, identity.meaning_between(state))


def test_a_checkpoint_that_is_doubted_before_the_first_decision() -> None:
    state = DecisionLog(ModelStore()).open()
    assert identity.meaning_between(state) == "No epoch is decided."


def test_spark_moved_while_it_ran() -> None:
    """Epochs are dense; nobody but Spark writes its checkpoint."""
    world = ModelWorld()

    def hook(point: str) -> None:
        if point == "start.after":
            world.planned.update({0: (0, 4), 1: (4, 8)})
            world.committed.update({0, 1})

    gap = "Spark started epoch 2, but the decision log is at -1"
    with pytest.raises(WrongCheckpoint, match=gap), hooked(hook):
        run(world, 3)


def test_a_busy_driver_is_no_reason_to_doubt_the_checkpoint() -> None:
    """Another driver took every slot that was tried: stop it, says the error."""
    world = ModelWorld()
    run(world, 1)
    busy = Coordinator(Run(NAME, CHECKPOINT, world.bound(), DecisionLog(world.store), world))
    outer = True

    def hook(point: str) -> None:
        nonlocal outer
        if point == "claim.before" and outer:
            outer = False
            busy.claim()
            outer = True

    running = "another driver took the next slot"
    with hooked(hook), pytest.raises(Fenced, match=running):
        run(world, 2)


def test_a_sink_with_a_decided_epoch_was_removed() -> None:
    world = ModelWorld()
    die(world, "decide.after", 2)
    gone = "epoch 1 is decided for sink 'ledger1'.*is not among the sinks"
    with refused(world, gone, CheckpointProblem):
        drive(world, names=["parts0"])
    run(world, 3)
    world.check_end()


def test_a_sink_with_a_decided_epoch_was_moved() -> None:
    world = ModelWorld()
    die(world, "decide.after", 2)
    world.move("ledger1")
    with refused(world, r"sink 'ledger1' \(ledger1\), which now points to", CheckpointProblem):
        run(world, 3)


def test_a_sink_is_dropped_by_name_for_the_decided_epoch_only() -> None:
    world = ModelWorld()
    die(world, "decide.after", 2)
    world.move("ledger1")
    drive(world, drop=["ledger1"], epochs=4)
    assert sorted(world.servers["ledger1"].rows()) == sorted(world.rows(2) + world.rows(3))
    assert len(world.servers["parts0"].rows()) == 16


def test_a_drop_is_remembered_by_the_next_start() -> None:
    """The driver that was told to drop dies; the next one is not told again."""
    world = ModelWorld()
    die(world, "decide.after", 2)
    world.move("ledger1")
    with pytest.raises(Crash), hooked(lambda point: die_at("recover.before", point)):
        drive(world, drop=["ledger1"])
    run(world, 3)
    assert sorted(world.servers["ledger1"].rows()) == sorted(world.rows(2))


def test_a_drop_is_remembered_through_a_replay() -> None:
    """The decided epoch is decided again, without the sink that was given up."""
    world = ModelWorld(Setting(kinds=("parts", "ledger", "parts")))
    die(world, "decide.after", 2)
    world.move("ledger1")
    server = world.servers["parts2"]
    server.expire(next(iter(server.prepared)))
    with pytest.raises(Crash), hooked(lambda point: die_at("decide.after", point)):
        drive(world, drop=["ledger1"])
    run(world, 3)
    assert sorted(world.servers["ledger1"].rows()) == sorted(world.rows(2))
    assert len(server.rows()) == 12


def die_at(point: str, passed: str) -> None:
    if point == passed:
        raise Crash(point)


def test_a_sink_is_removed_and_moved_between_epochs() -> None:
    """Nothing of it is unfinished, so there is nothing to ask."""
    world = ModelWorld()
    run(world, 1)
    drive(world, names=["parts0"], epochs=2)
    world.move("ledger1")
    run(world, 3)
    assert sorted(world.servers["ledger1"].rows()) == sorted(world.rows(2))


def test_a_sink_that_is_added_begins_at_the_first_undecided_epoch() -> None:
    world = ModelWorld()
    with pytest.raises(Crash), hooked(lambda point: die_at("decide.after", point)):
        drive(world, names=["parts0"])
    run(world, 3)
    assert sorted(world.servers["ledger1"].rows()) == sorted(world.rows(1) + world.rows(2))
    assert len(world.servers["parts0"].rows()) == 12


def test_the_claim_records_mode_sinks_and_targets() -> None:
    world = ModelWorld()
    run(world, 1)
    drive(world, at_least_once, epochs=2)
    first, second = world.store.claims.values()
    assert first.sinks == {"parts0": "parts0", "ledger1": "ledger1"}
    assert (first.mode, first.base, first.published) == ("exactly-once", -1, -1)
    assert (second.mode, second.base, second.published) == ("at-least-once", 0, -1)
    run(world, 3)
    third = list(world.store.claims.values())[2]
    assert (third.mode, third.base, third.published) == ("exactly-once", 1, 2)
