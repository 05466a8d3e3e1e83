"""One round: a checkpoint, scratch targets and copies of the sources, and children on them.

A round is a chain of starts of the job, each with a fault except the last. When the range is used
up, a new round begins with new targets.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from beadline import errors
from beadline.decisions import DecisionLog, FileStore
from beadline.decisions.store import LOG_FOLDER
from beadline.errors import BeadlineError, UsageError
from beadline.files import join, open_files, qualify
from beadline.ids import PartId
from beadline.points import CrashOrder
from beadline.verify import scratch
from beadline.verify.child import Child, Children
from beadline.verify.compare import (
    EpochEnd,
    Reference,
    RunProgress,
    SinkContents,
    Violation,
    ViolationKind,
    end,
    progress,
    torn,
)
from beadline.verify.report import INCONCLUSIVE
from beadline.verify.task import (
    CHECKPOINT,
    FOUND,
    INSPECT,
    RANGES,
    RECORDED,
    RUN,
    STOP,
    Inspection,
    Recording,
    Task,
    epoch_end,
    query_name,
    task_of,
)
from beadline.verify.watch import SinkWatcher

# How long a start may take, at least; more, if the undisturbed run is slow.
TIMEOUT_MIN_S = 240.0
_SETTLE_SHARE = 1 / 24
_SETTLE_MIN_S = 30.0  # a server on a busy machine may answer that long before it shows a row
MODULE = "beadline.verify.job"
Redact = Callable[[str], str]


class VerifyFailed(BeadlineError):
    """The verification itself could not be done; this says nothing about the job's guarantee."""

    exit_code: ClassVar[int] = INCONCLUSIVE


@dataclass
class Round:
    """One chain of starts; ``readers`` are the scratch sinks that the comparison reads."""

    folder: Path
    temporary: Path
    task: Task
    found: Inspection
    readers: dict[str, Any]
    proxies: list[scratch.Proxy] = field(default_factory=list)
    scratch_targets: bool = True
    timeout_s: float = TIMEOUT_MIN_S  # of each start; one that has not ended by then proves nothing
    redact: Redact = str  # removes the job's secrets from the output of its processes
    ahead: bool = False  # whether drivers are started ahead

    def __post_init__(self) -> None:
        """Two zombies: what a driver leaves behind stays alive during the next two."""
        self.children = Children(MODULE, self.folder, self.temporary, redact=self.redact, zombies=2)

    @property
    def checkpoint(self) -> str:
        """The query's name, as in the log."""
        return qualify(str(self.folder / CHECKPOINT))

    @property
    def settle_s(self) -> float:
        """How long a row may be on its way after its commit was answered."""
        return max(_SETTLE_MIN_S, self.timeout_s * _SETTLE_SHARE)

    def start(
        self,
        order: CrashOrder | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        last: bool = False,
        **changes: Any,
    ) -> Child:
        """Start a child on this round's checkpoint; ``changes`` are made to its task."""
        (self.folder / STOP).unlink(missing_ok=True)
        replace(self.task, **changes).save(self.folder)
        if self.ahead:
            following = len(self.children.started) + 1
            self.children.expected = following if last else following + 1
            if not last:
                self.task.save(self.folder, task_of(self.children.due(following)))
        return self.children.start(str(self.folder), RUN, order=order, environment=environment)

    def ask_to_stop(self) -> None:
        """Stop the running child as a user would."""
        (self.folder / STOP).touch()

    def decided(self) -> int:
        """The newest decided epoch; -1 if there is none."""
        state = self._log()
        return -1 if state is None or state.decision is None else state.decision.epoch

    def _log(self) -> Any:
        folder = join(self.checkpoint, LOG_FOLDER)
        files = open_files(folder)
        if not files.exists(folder):
            return None
        store = FileStore(files, folder)
        try:
            return DecisionLog(store).open()
        finally:
            store.close()

    def shown(self) -> dict[str, SinkContents]:
        """What every sink shows now."""
        return {name: scratch.shown(name, sink) for name, sink in self.readers.items()}

    def recorded(self) -> Recording:
        """What the child that ran with ``record`` recorded."""
        return _own((self.folder / RECORDED).read_bytes())  # type: ignore[no-any-return]

    def in_doubt(self) -> dict[str, set[PartId]]:
        """What is prepared and not visible, according to the sinks themselves."""
        state = self._log()
        if state is None or state.claim is None:
            return {}
        query = state.claim.query
        return {
            name: {part.id for part in sink.in_doubt(query, name)}
            for name, sink in self.readers.items()
        }

    def judge(self, references: Mapping[str, Reference], alike: bool) -> list[Violation]:
        """Compare everything, when the last child has processed the range."""
        shown = self.shown()
        compared = [each for each in references.values() if each.comparable(alike)]
        found = [bad for each in compared for bad in end(each, shown[each.sink])]
        exactly = [each for each in compared if each.exactly]
        return [*found, *torn(exactly, shown), *left_behind(self.in_doubt())]

    def progress(self, undisturbed: Mapping[EpochEnd, int]) -> RunProgress:
        """How far it is, in epochs of the undisturbed run."""
        end_of = partial(epoch_end, self.folder / CHECKPOINT)
        return progress(undisturbed, end_of, self.decided())

    def watch(
        self, references: Mapping[str, Reference], undisturbed: Mapping[EpochEnd, int]
    ) -> SinkWatcher:
        """A reader of this round's sinks; ``undisturbed`` are the epochs of the references."""
        so_far = partial(self.progress, undisturbed)
        return SinkWatcher(self.readers, references, so_far, self.settle_s)

    def end(self) -> None:
        """End what runs; the targets stay."""
        self.children.end()
        for proxy in self.proxies:
            proxy.stop()

    def remove(self) -> list[str]:
        """Remove the scratch targets; what cannot be removed is left, and named."""
        left = []
        if self.scratch_targets:
            claimed = self._claimed()
            for name, sink in self.readers.items() if claimed is not None else ():
                scratch.abort(name, sink, claimed)
            query = query_name(self.found.query, self.task.tag)
            for name, sink in self.readers.items():
                left += scratch.remove(name, sink, query)
        shutil.rmtree(self.folder, ignore_errors=True)
        return left

    def _claimed(self) -> Any:
        """The query in the log; None if it never got that far."""
        with suppress(Exception):
            state = self._log()
            return None if state is None or state.claim is None else state.claim.query
        return None


def left_behind(parts: Mapping[str, set[PartId]]) -> list[Violation]:
    """Parts that were neither finished nor aborted, though they should have been."""
    found = []
    for sink, ids in parts.items():
        if ids:
            first = min(ids, key=lambda id_: (id_.epoch, str(id_)))
            text = f"{len(ids)} prepared parts, neither finished nor aborted, {first} first"
            found.append(Violation(ViolationKind.LEFT, sink, text, len(ids), first.epoch))
    return found


def inspect(
    task: Task, folder: Path, temporary: Path, timeout_s: float, redact: Redact = str
) -> tuple[Inspection, Task]:
    """Examine the job in a separate process; its errors are raised here.

    The returned task includes the connectors that the job was found to need.
    """
    for connectors in ((), ("kafka",)):
        task = replace(task, connectors=connectors)
        task.save(folder)
        log = folder / "inspect.log"
        arguments = [str(folder), INSPECT]
        child = Child(MODULE, arguments, log, temporary, redact=redact)
        try:
            code = child.wait(timeout_s)
        except TimeoutError:
            raise VerifyFailed(
                f"looking at the job, and copying what its sources hold, did not end in "
                f"{timeout_s:.0f} s, so nothing is known about it. Raise --timeout, or copy less "
                f"with --files and --records. {child.complaint()}"
            ) from None
        finally:
            child.end()
        if code == 0:
            found: Inspection = _taken(folder / FOUND)
            return found, replace(task, ranges=found.ranges)
        failures = [line for line in child.events if line["kind"] == "failed"]
        if not failures or failures[-1]["error"] != errors.JarsUnavailable.__name__:
            break
    if not failures:
        raise VerifyFailed(f"a look at the job ended with {code}\n{child.complaint()}")
    kind = getattr(errors, str(failures[-1]["error"]), UsageError)
    raise kind(redact(str(failures[-1]["message"])))


def _taken(path: Path) -> Any:
    """A child's result, read once: it may hold passwords, so it does not stay on the disk."""
    data = path.read_bytes()
    path.unlink()
    return _own(data)


def _own(data: bytes) -> Any:
    """What a child left, in a folder that no other user may write to."""
    return pickle.loads(data)  # noqa: S301


def remove_ranges(folder: Path) -> list[str]:
    """Remove the copies of the sources; also after an inspection that failed half-way."""
    path = folder / RANGES
    if not path.exists():
        return []
    from beadline.verify.topic_range import remove

    left = []
    for fixed in _taken(path):
        try:
            remove(fixed)
        except Exception as error:  # noqa: BLE001 (whatever a client library raises)
            left.append(f"the copy of {fixed.name} {fixed.where} is left: {scratch.plain(error)}")
    return left


def make_round(
    task: Task,
    found: Inspection,
    folder: Path,
    temporary: Path,
    *,
    in_place: bool = False,
    proxied: bool = False,
    timeout_s: float = TIMEOUT_MIN_S,
    redact: Redact = str,
    ahead: bool = False,
) -> Round:
    """New targets; between the job and their servers, proxies if asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    readers: dict[str, Any] = {}
    made = Round(folder, temporary, task, found, readers, timeout_s=timeout_s, redact=redact)
    made.ahead = ahead
    made.scratch_targets = not in_place
    sinks: dict[str, Any] = {}
    by_address: dict[tuple[str, int], scratch.Proxy] = {}
    try:
        for number, seen in enumerate(found.sinks):
            store = scratch.store_of(seen.name, seen.sink)
            # Sinks that share a prefix, a topic or a folder name must not show each other's rows.
            place = scratch.ScratchLocation(folder / f"sink-{number}", f"{task.tag}s{number}")
            place.folder.mkdir(exist_ok=True)
            sink = seen.sink if in_place else store.clone(seen.sink, place)
            readers[seen.name] = sinks[seen.name] = sink
            address = store.address(sink) if proxied else None
            if address is not None:
                if address not in by_address:
                    proxy = store.proxy(sink, address)
                    proxy.start()
                    made.proxies.append(proxy)
                    by_address[address] = proxy
                sinks[seen.name] = store.through(sink, by_address[address].port)
    except BaseException:
        made.end()
        made.remove()
        raise
    made.task = replace(task, sinks=sinks, readers=dict(readers))
    return made
