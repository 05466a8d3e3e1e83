"""What a verification does not show: said in the report, or a reason not to begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from beadline.errors import UsageError
from beadline.verify import scratch
from beadline.verify.compare import Reference
from beadline.verify.task import Found, SinkSeen


def check_any_rows(references: Mapping[str, Reference]) -> None:
    """Refuse to compare nothing with nothing: whatever the faults did, it would be fine."""
    if not any(each.end.rows for each in references.values()):
        raise UsageError(
            "the undisturbed run shows no rows in any sink, so there is nothing to compare. A "
            "filter may let none through, or a watermark may close no window in the range: take "
            "more with --records or --files, or let totals show at once with --output-mode update."
        )


def notes_of(
    found: Found, references: Mapping[str, Reference], *, chosen: bool = False
) -> list[str]:
    """Everything that a reader of the verdict should know; ``chosen``, if faults were by hand."""
    notes = [*(each.said for each in found.ranges), *_of_sinks(found, references)]
    if found.stateful and not chosen and any(map(can_expire, found.sinks)):
        notes.append("the fault 'expire' is left out: the job keeps state")
    return notes


def can_expire(seen: SinkSeen) -> bool:
    """Whether the server forgets what is prepared after a while."""
    return scratch.store_of(seen.name, seen.sink).with_timeout is not None


def _of_sinks(found: Found, references: Mapping[str, Reference]) -> Iterator[str]:
    for seen in found.sinks:
        store = scratch.store_of(seen.name, seen.sink)
        reference = references[seen.name]
        if store.note(seen.sink):
            yield f"{seen.name}: {store.note(seen.sink)}"
        if store.address(seen.sink) is None:
            yield f"no network cuts for {seen.name}: {store.no_cuts}"
        if not reference.end.rows:
            yield f"{seen.name} shows no rows in the undisturbed run: nothing is proven of it"
        if not reference.watched:
            yield f"{seen.name} is compared at the end only: {_why_not_watched(reference, store)}"
    for name in found.left_out:
        yield f"{name} is not compared: it cannot be read back"


def _why_not_watched(reference: Reference, store: scratch.Store) -> str:
    if not reference.by_epoch:
        return "its epochs are not the same in every run"
    if reference.atomic:
        return "its rows change, and may be written again (at-least-once)"
    return store.no_watch
