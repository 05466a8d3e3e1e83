"""Targets: what the log knows about every sink, and whether the target still matches it.

A sink that was removed and put back has a gap; one that was restored from an older copy lacks what
it had acknowledged; one that was deleted and recreated lacks everything. Later rows show none of
this, so each start compares, before the claim, and refuses a mismatch unless the operator gives the
missing rows up by name (rules 5 and 25).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from beadline.decisions import Claim, Decision, LogState, SinkHistory
from beadline.errors import NOTHING_WRITTEN, BadSetting, CheckpointProblem
from beadline.ids import QueryId
from beadline.protocol.identity import given_up, last_seen, newest_certain
from beadline.sink import BoundSink, Prepared

Span = tuple[int, int]


@dataclass(frozen=True)
class Drop:
    """What an operator gives up.

    A name gives up what the sink lacks, and of a decided epoch only what cannot be committed.
    ``name@epoch`` gives up that epoch, or what the sink lacks up to it. A name works once: left in
    the code, it was ``spent`` by the previous start. Otherwise it would silently give up what a
    later accident takes.
    """

    names: frozenset[str]
    epochs: frozenset[tuple[str, int]]
    spent: frozenset[str] = frozenset()
    # The newest epoch that the target of a named sink holds, as the sink said when it refused a
    # commit.
    behind: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, words: Collection[str]) -> Drop:
        """Read ``drop=``."""
        if isinstance(words, str):
            words = (words,)
        names, epochs = set(), set()
        for word in words:
            name, at, epoch = str(word).partition("@")
            if at and not (epoch.isascii() and epoch.isdigit()):
                raise BadSetting(
                    f"drop={word!r}: the part after @ must be the number of a decided epoch, as in "
                    f'drop=["{name}@17"]. {NOTHING_WRITTEN}'
                )
            if at:
                epochs.add((name, int(epoch)))
            else:
                names.add(name)
        return cls(frozenset(names), frozenset(epochs))

    def after(self, claim: Claim | None) -> Drop:
        """Return what is left of it: the previous start may have named the same sinks."""
        spent = self.names & set(claim.words if claim else ())
        return replace(self, names=self.names - spent, spent=spent)

    @property
    def words(self) -> tuple[str, ...]:
        """The sinks that are named, spent or not, as a claim keeps them."""
        return tuple(sorted(self.names | self.spent))

    def check_known(self, known: Collection[str], certain: int) -> None:
        """An unknown name is a mistake, and so is a future epoch."""
        for name in sorted({*self.words, *(name for name, _ in self.epochs)}):
            if name not in known:
                raise BadSetting(
                    f"drop={name!r}: neither this query nor its decision log knows a sink of that "
                    f"name. Known: {', '.join(sorted(known)) or 'none'}. {NOTHING_WRITTEN}"
                )
        for name, epoch in sorted(self.epochs):
            if epoch > certain:
                raise BadSetting(
                    f'drop="{name}@{epoch}": the newest decided epoch is {certain}, and only what '
                    f"was decided can be given up. {NOTHING_WRITTEN}"
                )


@dataclass
class TargetChanges:
    """What a start has found: the histories for its claim, and what there is to report."""

    histories: list[SinkHistory] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    given_up: dict[str, list[Span]] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)

    def give_up(self, name: str, span: Span) -> None:
        """Note epochs whose rows a sink will never have."""
        self.given_up.setdefault(name, []).append(span)


def known_histories(state: LogState) -> tuple[SinkHistory, ...]:
    """Return what the newest claim knows; one of version 1 knew names and targets only."""
    if state.claim is None:
        return ()
    if state.claim.histories:
        return state.claim.histories
    return tuple(SinkHistory(name, target) for name, target in state.claim.sinks.items())


def history_of(state: LogState, name: str, target: str) -> SinkHistory | None:
    """Return what is known about a sink at one target."""
    for known in known_histories(state):
        if (known.name, known.target) == (name, target):
            return known
    return None


def held_before(state: LogState, known: SinkHistory) -> int:
    """Return the newest epoch with rows, before the newest decision, that a sink must hold.

    A later claim overrules the decision: an operator may have given rows up in between.
    """
    claim, decision = state.claim, state.decision
    if known.until is None and claim and decision and decision.generation == claim.generation:
        return decision.previous.get(known.name, -1)
    return known.holds


def held(state: LogState, known: SinkHistory) -> int:
    """Return the same where the newest decision is finished."""
    claim, decision = state.claim, state.decision
    if claim is None or decision is None or known.until is not None:
        return known.holds
    # If it was finished before the claim, the claim already includes it.
    counted = decision.generation < claim.generation and decision.epoch <= claim.base
    given = known.name in given_up(state, decision) or decision.epoch < known.since
    rows = any(part.rows for part in decision.sinks.get(known.name, ()))
    return decision.epoch if rows and not counted and not given else held_before(state, known)


def is_since(state: LogState, sink: BoundSink, epoch: int) -> bool:
    """Whether a sink, at its target, was in the query at an epoch."""
    known = history_of(state, sink.name, sink.capabilities.target)
    return known is not None and known.since <= epoch


def previous_epochs(
    state: LogState, sinks: Sequence[BoundSink], of_newest: bool = False
) -> dict[str, int]:
    """Return what each sink must hold when the next epoch is committed to it (rule 25).

    ``of_newest`` asks for the newest decision instead: to commit it, or to replay it.
    """
    found = {}
    for sink in sinks:
        known = history_of(state, sink.name, sink.capabilities.target)
        epoch = -1 if known is None else (held_before if of_newest else held)(state, known)
        if epoch >= 0:
            found[sink.name] = epoch
    return found


def check_targets(
    query: QueryId,
    state: LogState,
    pending: Decision | None,
    certain: int,
    sinks: Sequence[BoundSink],
    drop: Drop,
) -> TargetChanges:
    """Compare every sink with what the log knows of it; ``certain`` is the newest certain epoch."""
    known = known_histories(state)
    names = {one.name for one in known} | {sink.name for sink in sinks}
    names |= {*(pending.sinks if pending else ())}
    drop.check_known(names, certain)
    found = TargetChanges()
    if pending is not None and state.claim is not None:
        found.dropped |= given_up(state, pending)
    here = {(sink.name, sink.capabilities.target) for sink in sinks}
    _check_gone(state, pending, sinks, drop, found)
    for one in known:
        if (one.name, one.target) not in here:
            found.histories.append(_taken_out(state, pending, certain, one, found))
    gone = tuple(found.histories)
    for sink in sinks:
        one = _check_sink(query, state, pending, certain, sink, drop, found, gone)
        found.histories.append(one)
    return found


def _check_gone(
    state: LogState,
    pending: Decision | None,
    sinks: Sequence[BoundSink],
    drop: Drop,
    found: TargetChanges,
) -> None:
    """A decided epoch's sinks must still be there, at the same targets, or be dropped by name."""
    if pending is None or state.claim is None:
        return
    here = {sink.name: sink.capabilities.target for sink in sinks}
    for name, parts in pending.sinks.items():
        target = state.claim.sinks.get(name, "")
        if name in found.dropped or not parts or (target and here.get(name) == target):
            continue
        if name not in drop.names and (name, pending.epoch) not in drop.epochs:
            what = "is not among the sinks" if name not in here else f"now points to {here[name]}"
            raise CheckpointProblem(
                f"epoch {pending.epoch} is decided for sink {name!r} ({target}), which {what}: its "
                "rows would never show there. Start once with that sink, or give its rows up "
                f'with start(..., drop=["{name}"]).{spent(drop, name, pending.epoch)} '
                f"{NOTHING_WRITTEN}"
            )
        found.dropped.add(name)
        found.give_up(name, (pending.epoch, pending.epoch))


def _seen(query: QueryId, sink: BoundSink, name: str) -> int:
    """Return the newest epoch of ours that a sink's target holds under a name; -1 for none."""
    seen = last_seen(sink, query, name)
    return seen.epoch if seen is not None and seen.incarnation == query.incarnation else -1


def _is_at(sink: BoundSink, target: str) -> bool:
    """Whether a sink writes to a target and knows exactly what that holds."""
    return sink.capabilities.remembers and sink.capabilities.target == target


def _older_copy(
    query: QueryId,
    state: LogState,
    pending: Decision | None,
    sink: BoundSink,
    gone: Sequence[SinkHistory],
) -> tuple[SinkHistory, int] | None:
    """Return whose rows a new sink's target lacks, and the newest epoch of them that it holds.

    A sink that is new by its name or address may be a known one: a table whose sink was renamed, a
    backup that was restored elsewhere. What it should hold is known under its other name.
    """
    if not sink.capabilities.remembers:
        return None
    for one in gone:
        if _is_at(sink, one.target) and (has := _seen(query, sink, one.name)) < one.holds:
            return one, has
    if any(_is_at(sink, one.target) for one in known_histories(state)):
        return None  # not a copy; and its ledger may answer for the sinks that use it
    for name in dict.fromkeys(one.name for one in gone):
        has = _seen(query, sink, name)
        held_by = [one for one in gone if one.name == name]
        whole = {*(one.holds for one in held_by), pending.epoch if pending else -1}
        newest = max(held_by, key=lambda one: one.holds)
        if 0 <= has < newest.holds and has not in whole:
            return newest, has
    return None


def _taken_out(
    state: LogState,
    pending: Decision | None,
    certain: int,
    known: SinkHistory,
    found: TargetChanges,
) -> SinkHistory:
    """Keep what is known about a sink that is not there: it may come back."""
    if known.until is not None:
        return known
    found.removed[known.name] = known.target
    holds = held(state, known) if pending is None else held_before(state, known)
    missing = set(known.missing)
    if pending is not None and known.name in found.dropped:
        missing.add((pending.epoch, pending.epoch))
    return replace(known, until=certain, holds=holds, missing=tuple(sorted(missing)))


def _check_sink(
    query: QueryId,
    state: LogState,
    pending: Decision | None,
    certain: int,
    sink: BoundSink,
    drop: Drop,
    found: TargetChanges,
    gone: Sequence[SinkHistory],
) -> SinkHistory:
    """Compare one sink with its history, and return the history that the claim will hold."""
    name, target = sink.name, sink.capabilities.target
    now = SinkHistory(name, target, sink.capabilities.instance, certain + 1)
    known = history_of(state, name, target)
    if known is None:
        if state.claim is not None and certain >= 0:
            found.added[name] = certain + 1
        older = _older_copy(query, state, pending, sink, gone)
        if older is None:
            return now
        one, has = older
        lacks = (has + 1, one.holds)
        _accept(drop, sink, lacks, found, f"of sink {one.name!r} {_restored(one.holds, has)}")
        return replace(now, missing=(lacks,))
    if known.instance and now.instance and known.instance != now.instance:
        if known.since <= certain:
            lacks = (known.since, certain)
            _accept(drop, sink, lacks, found, _remade(known.instance, now.instance))
        if pending is not None and pending.sinks.get(name):
            found.dropped.add(name)  # prepared for the old one, and given up with it
        return now
    holds = held(state, known) if pending is None else held_before(state, known)
    missing = list(known.missing)
    if known.until is not None and known.until < certain:
        hole = (known.until + 1, certain)
        _accept(drop, sink, hole, found, f"it was removed from the query after epoch {known.until}")
        missing.append(hole)
    if sink.capabilities.remembers and holds >= 0:
        has = _seen(query, sink, name)
        if has < holds:
            lacks = (max(has + 1, known.since), holds)
            _accept(drop, sink, lacks, found, _restored(holds, has))
            missing.append(lacks)
            holds = has
    if pending is not None and pending.sinks.get(name) and name not in found.dropped:
        _check_pending(pending, sink, drop, found)
    holds = _still_asked(query, sink, drop, found, known, holds, missing)
    if pending is not None and name in found.dropped:
        missing.append((pending.epoch, pending.epoch))
    spans = tuple(sorted(set(missing)))
    return replace(
        now, instance=now.instance or known.instance, since=known.since, holds=holds, missing=spans
    )


def _still_asked(
    query: QueryId,
    sink: BoundSink,
    drop: Drop,
    found: TargetChanges,
    known: SinkHistory,
    holds: int,
    missing: list[Span],
) -> int:
    """Return what a sink must hold at its next commit; note what its target said it lacks.

    What a sink that may remember too little lacks cannot be known here, but it may refuse a commit
    over it (rule 25). Once given up by name, it must not be required again: each drop would give up
    one more epoch, forever.
    """
    if (has := drop.behind.get(sink.name, holds)) < holds:
        lacks = (max(has + 1, known.since), holds)
        found.give_up(sink.name, lacks)
        missing.append(lacks)
        return has
    named = sink.name in drop.names or sink.name in found.dropped
    if named and not sink.capabilities.remembers:
        return min(holds, _seen(query, sink, sink.name))
    return holds


def _check_pending(pending: Decision, sink: BoundSink, drop: Drop, found: TargetChanges) -> None:
    """A decided epoch that is not finished: given up by name, or its parts must be readable."""
    name, epoch = sink.name, pending.epoch
    one = f'drop=["{name}@{epoch}"]'
    other = not pending.is_of_kind(name, sink.kind)
    if (name, epoch) in drop.epochs or (name in drop.names and other):
        found.dropped.add(name)
        found.give_up(name, (epoch, epoch))
    elif other:
        raise CheckpointProblem(
            f"epoch {epoch} is decided for sink {name!r} ({sink.capabilities.target}) as "
            f"{pending.kinds[name]}, and the sink of that name is now of another kind "
            f"({sink.kind}), which cannot finish it. Start once with the sink as it was, which "
            "finishes the epoch, and then change it; or give its rows of this epoch up with "
            f"start(..., {one}). {NOTHING_WRITTEN}"
        )


def _accept(drop: Drop, sink: BoundSink, span: Span, found: TargetChanges, why: str) -> None:
    """Refuse a sink that lacks epochs, unless it was named: then say what it lacks."""
    if span[0] > span[1]:
        return
    if sink.name in drop.names or (sink.name, span[1]) in drop.epochs:
        found.give_up(sink.name, span)
        return
    raise CheckpointProblem(
        f"{_lacking(sink, span, why)}{spent(drop, sink.name, span[1])} {NOTHING_WRITTEN}"
    )


def _lacking(sink: BoundSink, span: Span, why: str) -> str:
    """Say that a sink lacks epochs, and what to do."""
    return (
        f"sink {sink.name!r} ({sink.capabilities.target}): {why}. Its rows of "
        f"{epochs_text([span])} are missing, and the source will not redeliver them. Restore the "
        f"target; or start over with a new checkpoint: {sink.capabilities.start_over}; or "
        f'continue without those rows with start(..., drop=["{sink.name}"]), once.'
    )


def replaced(state: LogState, sink: BoundSink, parts: Sequence[Prepared[Any]]) -> str:
    """Say that what was prepared is not in the target that the start found; empty if it is.

    Its parts say where they were written, as far as they know: a long-lived writer may know the
    previous target. So the target is asked too, when everything is written: instances never come
    back, so if it is still the same one, nothing went to another.
    """
    claimed = sink.capabilities.instance
    if not claimed or not parts:
        return ""
    written = sorted({part.committable.instance for part in parts})
    now = next((one for one in written if one not in ("", claimed)), "")
    now = now or sink.sink.instance_now()
    if now in ("", claimed):
        return ""
    known = history_of(state, sink.name, sink.capabilities.target)
    why = f"while the query ran {_remade(claimed, now)}"
    certain = newest_certain(state)
    if known is None or known.since > certain:
        return f"sink {sink.name!r} ({sink.capabilities.target}): {why}. Start again."
    return _lacking(sink, (known.since, certain), why)


def spent(drop: Drop, name: str, epoch: int) -> str:
    """Say why a given ``drop=`` did not apply, and what would."""
    if name not in drop.spent:
        return ""
    return (
        f" drop={name!r} was given to the previous start too, and a name gives up what one start "
        f'finds. Name the last epoch to give up: drop=["{name}@{epoch}"].'
    )


def _restored(holds: int, has: int) -> str:
    now = "nothing of this query" if has < 0 else f"epoch {has}"
    return (
        f"it has acknowledged epoch {holds} and now holds {now}, so it lost what it had "
        "acknowledged (restored from an older backup, a replica took over that had not received "
        "it, a power cut with settings that allow it, or its ledger was emptied)"
    )


def _remade(known: str, now: str) -> str:
    return (
        f"it was deleted and recreated (its id was {known} and is now {now}), so everything that "
        "this query had written there is gone"
    )


def epochs_text(spans: Collection[Span]) -> str:
    """Return epochs for people, each once: ``epoch 3``, or ``epochs 3, 7 to 9``."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    one = len(merged) == 1 and merged[0][0] == merged[0][1]
    shown = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in merged)
    return f"{'epoch' if one else 'epochs'} {shown}"
