"""Replay: compute a decided epoch again, because parts of it are proven lost (rule 13).

All parts are computed from the same offsets; only if every checksum matches what was decided are
the lost ones published. The replacement is decided before it is committed: otherwise, after a crash
in the middle of its commits, half of it would be missing from the old decision and would be
published twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from beadline.dead_letter import RefusedRow, checksum
from beadline.decisions import Decision, StoredPart
from beadline.errors import EpochFailed, NotDeterministic, PartLost
from beadline.ids import PartId
from beadline.protocol.decide import decide_replayed, stored_parts
from beadline.protocol.epoch import Epoch
from beadline.protocol.identity import check_offsets, given_up, meaning_decided
from beadline.protocol.prepare import prepare
from beadline.protocol.run import Run
from beadline.protocol.sweep import Sweeper
from beadline.sink import BoundSink, Prepared

REPLAYS_MAX = 3


def replay(run: Run, sweeper: Sweeper, epoch: Epoch) -> Decision:
    """Return a new decision of the same epoch, in which the lost parts are replaced."""
    decision, lost, batch = epoch.decided, epoch.lost, epoch.batch
    where = f"query {run.name!r}, epoch {decision.epoch}"
    run.tell("lost", decision.epoch, parts={name: len(parts) for name, parts in lost.items()})
    if epoch.replays == REPLAYS_MAX:
        sinks = [sink for sink in run.sinks if sink.name in lost]
        settings = ", ".join(sorted({sink.capabilities.timeout_setting for sink in sinks}))
        raise PartLost(
            f"{where}: parts of {sorted(lost)} were lost {REPLAYS_MAX + 1} times in a row. Nothing "
            f"is dropped: the epoch stays decided. Raise {settings} above the time that an epoch "
            "takes, then start again."
        )
    run.log.check_newest()
    check_offsets(decision, batch.offsets(), meaning_decided(decision.epoch))
    parts = _replace_lost(run, sweeper, epoch, where)
    again = decide_replayed(run, batch, decision, parts)
    run.tell("replayed", decision.epoch, sinks=sorted(lost))
    return again


def _replace_lost(
    run: Run, sweeper: Sweeper, epoch: Epoch, where: str
) -> dict[str, tuple[StoredPart, ...]]:
    """Prepare the epoch again; return its parts with the lost ones replaced, and abort the rest.



    Only the sink that refuses rows knows which: if dead-letter records are lost, that sink is
    prepared again as well, and all of its parts are spare.
    """
    decision, lost = epoch.decided, epoch.lost
    sinks = [s for s in run.sinks if s.name in lost or s.dead_letter in lost]
    # Writers are told nothing about what was decided, so that none continues under a name that the
    # decision lists: its late commit would commit our transaction (rule 17).
    acks = prepare(run, sweeper, epoch, sinks, decided={})
    sweeper.expect()  # attempts that are in no ack
    dropped = given_up(run.log.state, decision)
    parts = {name: part for name, part in decision.sinks.items() if name not in dropped}
    spare: dict[str, list[Prepared[Any]]] = {}
    try:
        for sink in sinks:
            _check_refused(where, sink, decision, acks[sink.name].refused)
            again = list(acks[sink.name].prepared)
            if sink.name in lost:
                gone = {part.id for part in lost[sink.name]}
                old = run.parts(decision, sink)
                cut = _cut(decision.settings, epoch.batch.settings())
                used = _match(where, sink, old, gone, again, cut)
                parts[sink.name] = stored_parts([p for p in old if p.id not in gone] + used)
                again = [part for part in again if part not in used]
            spare[sink.name] = again
    except EpochFailed:
        sweeper.after_failure()
        raise
    for sink in sinks:
        # Parts that were not lost were prepared a second time.
        if spare[sink.name]:
            sink.sink.abort(spare[sink.name])
    return parts


def _check_refused(
    where: str, sink: BoundSink, decision: Decision, refused: Sequence[RefusedRow]
) -> None:
    """The sink must refuse the same rows as before: those are dead-letter records."""
    decided = decision.sinks.get(sink.dead_letter, ())
    rows = sum(part.rows for part in decided)
    if rows == len(refused) and all(part.checksum == checksum(refused) for part in decided):
        return
    raise NotDeterministic(
        f"{where}, sink {sink.name!r}: parts are lost, and when the epoch was computed again the "
        f"sink refused {len(refused)} rows, which are not the {rows} that were decided as "
        "dead-letter records. Publishing now could lose or duplicate rows, so nothing was "
        "published. The target has changed (a new topic or constraint?), or the plan is not "
        "deterministic. Change it back and start again; nothing is dropped."
    )


def _match(
    where: str,
    sink: BoundSink,
    old: Sequence[Prepared[Any]],
    gone: set[PartId],
    again: Sequence[Prepared[Any]],
    why: str,
) -> list[Prepared[Any]]:
    """Return, of the parts that were computed again, those that replace the lost ones.

    Every part of the decision must be among them, by its content. Not by its number: Spark's Kafka
    source renumbers the topic's partitions at each start.
    """
    left: dict[tuple[int, int | None], list[Prepared[Any]]] = {}
    for part in again:
        left.setdefault(_content(part), []).append(part)
    used = []
    for part in old:
        if part.checksum is None:
            raise PartLost(
                f"{where}, sink {sink.name!r}: {len(gone)} parts are gone from the outside system "
                "(deleted from outside?), and this sink keeps no checksum by which their rows "
                "could be computed again and proven the same. Nothing was published and nothing is "
                "dropped. Restore them, or start once with "
                f'drop=["{sink.name}@{part.id.epoch}"], which gives up its rows of this epoch.'
            )
        same = left.get(_content(part))
        if len(again) != len(old) or not same:
            raise NotDeterministic(
                f"{where}, sink {sink.name!r}: {len(gone)} of {len(old)} parts are lost, and "
                f"computing the epoch again did not give the parts that were decided (part "
                f"{part.id.partition}, {part.rows} rows, has no match among the {len(again)} "
                "recomputed parts). Publishing them could lose or duplicate rows, so nothing was "
                f"published. {why}"
            )
        found = same.pop()
        if part.id in gone:
            used.append(found)
    return used


def _cut(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Say why a replay may have different parts: partitioning settings (rule 28), or the plan."""
    changed = sorted(key for key in then if key in now and then[key] != now[key])
    if changed:
        values = "; ".join(f"{key} was {then[key]!r} and is {now[key]!r}" for key in changed)
        return (
            "The settings by which Spark divides an epoch's rows into parts have changed, and "
            f"could not all be restored for the replay: {values}. Start once with the old values "
            "(if the number of cores is among them, use as many as before, or set "
            "spark.default.parallelism to that number); nothing is dropped."
        )
    old = (
        " An older version of Beadline decided it, and did not record the number of cores: if that "
        "has changed, start once with as many as before."
    )
    return (
        "The plan is not deterministic: remove rand(), uuid(), the current time in Python and the "
        "like; then decide what to do with this epoch (beadline epochs shows it)."
        + (old if now.keys() - then.keys() else "")
    )


def _content(part: Prepared[Any]) -> tuple[int, int | None]:
    """The facts by which a part is recognised."""
    return part.rows, part.checksum
