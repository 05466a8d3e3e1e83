"""Replay: compute a decided epoch again, because parts of it are proven lost (rule 13).

All parts are computed from the same offsets; only if every checksum fits what was decided are the
lost ones published. The replacement is decided before it is committed: a crash in the middle of
its commits would otherwise find half of it missing from the old decision and publish it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from beadline.dead_letter import Refused, checksum
from beadline.decisions import Decision, StoredPart
from beadline.errors import EpochFailed, NotDeterministic, PartLost
from beadline.protocol.decide import Times, decide, stored
from beadline.protocol.engine import Batch
from beadline.protocol.identity import check_offsets, given_up
from beadline.sink import BoundSink

if TYPE_CHECKING:
    from beadline.protocol.commit import Lost
    from beadline.protocol.coordinator import Coordinator

REPLAYS_MAX = 3


def replay(
    coordinator: Coordinator, decision: Decision, batch: Batch, lost: Lost, times: int
) -> Decision:
    """Return a new decision of the same epoch, in which the lost parts are replaced."""
    where = f"query {coordinator.query.name!r}, epoch {decision.epoch}"
    coordinator.tell("lost", decision.epoch, parts={n: len(p) for n, p in lost.items()})
    sinks = [sink for sink in coordinator.sinks if sink.name in lost]
    if times > REPLAYS_MAX:
        settings = ", ".join(sorted({sink.capabilities.timeout_setting for sink in sinks}))
        raise PartLost(
            f"{where}: parts of {sorted(lost)} were lost {times} times in a row. Nothing is "
            f"dropped: the epoch stays decided. Raise {settings} above the time that an epoch "
            "takes, then start again."
        )
    check_offsets(decision, batch.offsets())
    if batch.settings() != decision.settings:
        raise NotDeterministic(
            f"{where}: parts of {sorted(lost)} are lost and must be replayed, but the settings "
            f"that cut rows into parts have changed from {decision.settings} to "
            f"{batch.settings()}. Start again with the old settings; nothing was published."
        )
    parts = _replace_lost(coordinator, decision, batch, lost, where)
    again = decide(
        coordinator.log,
        batch,
        coordinator.generation,
        parts,
        decision.parts,
        Times(decision.started_at_ms, decision.prepared_at_ms, decision.at_ms),
        replays=decision.replays + 1,
    )
    coordinator.tell("replayed", decision.epoch, sinks=sorted(lost))
    return again


def _replace_lost(
    coordinator: Coordinator, decision: Decision, batch: Batch, lost: Lost, where: str
) -> dict[str, tuple[StoredPart, ...]]:
    """Prepare the epoch again and return its parts, the lost ones replaced; nothing else is left.

    Which rows are dead letters is known only by the sink that refuses them: where dead letters are
    lost, it is prepared again as well, and all of its parts are spare.
    """
    sinks = [s for s in coordinator.sinks if s.name in lost or s.dead_letter in lost]
    acks = coordinator.prepare(batch, sinks, again=True)
    coordinator.losers = True  # attempts that are in no ack
    dropped = given_up(coordinator.log.state, decision)
    parts = {name: part for name, part in decision.sinks.items() if name not in dropped}
    gone = {s.name: {part.id.partition for part in lost.get(s.name, ())} for s in sinks}
    try:
        for sink in sinks:
            _check_refused(where, sink, decision, acks[sink.name].refused)
            if sink.name in lost:
                again = stored(acks[sink.name])
                parts[sink.name] = _merge(where, sink, decision, again, gone[sink.name])
    except EpochFailed:
        coordinator.sweep_losers()
        raise
    for sink in sinks:
        # Parts that were not lost were prepared a second time.
        prepared = acks[sink.name].prepared
        spare = [part for part in prepared if part.id.partition not in gone[sink.name]]
        if spare:
            sink.sink.abort(spare)
    return parts


def _check_refused(
    where: str, sink: BoundSink, decision: Decision, refused: Sequence[Refused]
) -> None:
    """The sink must refuse the rows that it refused before: they are decided as dead letters."""
    decided = decision.sinks.get(sink.dead_letter, ())
    rows = sum(part.rows for part in decided)
    if rows == len(refused) and all(part.checksum == checksum(refused) for part in decided):
        return
    raise NotDeterministic(
        f"{where}, sink {sink.name!r}: parts are lost, and when the epoch was computed again the "
        f"sink refused {len(refused)} rows, which are not the {rows} that were decided as dead "
        "letters. Publishing now could lose or double rows, so nothing was published. The target "
        "has changed (a topic or a constraint that was not there before?), or the plan is not "
        "deterministic. Change it back and start again; nothing is dropped."
    )


def _merge(
    where: str, sink: BoundSink, decision: Decision, again: tuple[StoredPart, ...], gone: set[int]
) -> tuple[StoredPart, ...]:
    """Take the lost partitions from the second run, everything else from the decision."""
    old = {part.partition: part for part in decision.sinks[sink.name]}
    new = {part.partition: part for part in again}
    for partition in old.keys() | new.keys():
        one, other = old.get(partition), new.get(partition)
        if one is not None and one.checksum is None:
            raise PartLost(
                f"{where}, sink {sink.name!r}: parts {sorted(gone)} are gone from the outside "
                "system (deleted by somebody else?), and this sink keeps no checksum by which "
                "their rows could be computed again and proven the same. Nothing was published "
                "and nothing is dropped. Bring them back, or take the sink out and start once "
                f'with drop=["{sink.name}"], which gives up its rows of this epoch.'
            )
        fits = one is not None and other is not None
        if not fits or _content(one) != _content(other):
            raise NotDeterministic(
                f"{where}, sink {sink.name!r}, part {partition}: {sorted(gone)} are lost, and "
                "computing the epoch again did not give the rows that were decided. Publishing "
                "them could lose or double rows, so nothing was published. The plan is not "
                "deterministic: remove rand(), uuid(), current time in Python and the like; then "
                "decide by hand what to do with this epoch (beadline epochs shows it)."
            )
    return tuple(replace(new[p] if p in gone else old[p]) for p in sorted(old))


def _content(part: StoredPart | None) -> tuple[int, int | None]:
    assert part is not None
    return part.rows, part.checksum
