"""``WriteAheadSink``: for systems without transactions, an HTTP endpoint or a user's function.

Rows become durable files at prepare (``StagedSink``) and are delivered at commit, in order, by the
driver. How far that went is kept in a file, batch by batch, so that after a crash it resumes after
the last batch that was acknowledged. The one that was in flight may arrive twice. Every row has an
id that never changes: an endpoint that drops repeats by it makes this exactly-once.
"""

from __future__ import annotations

import fcntl
import inspect
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from beadline.files import join
from beadline.files.local import local_path
from beadline.sink import (
    NOTHING_WRITTEN,
    BadSink,
    Capabilities,
    Guarantee,
    Outcome,
    Part,
    PrepareFailed,
    QueryId,
    Seen,
    StagedEpoch,
    StagedPart,
    StagedSink,
    delete_temporaries,
    folders_in,
    local_folder,
    name_from,
    refuse,
    without_unreadable,
)
from beadline.sinks.write_ahead.commit import DeliverySettings, EpochDelivery, RetryAfter
from beadline.sinks.write_ahead.endpoint import Deliver, Endpoint, FunctionEndpoint
from beadline.sinks.write_ahead.state import StateFiles, last_seen

if TYPE_CHECKING:
    import pyarrow as pa

Accepts = Callable[["pa.RecordBatch"], tuple["pa.Array", str]]


@dataclass(frozen=True)
class WriteAheadSink(StagedSink):
    """Rows to ``deliver``, a top-level function or an ``Endpoint``, ``batch_rows`` at a time.

    ``folder`` holds the staged rows, and what is remembered of the endpoint: driver and executors
    must share that disk, and the next start needs it too. ``name`` names the endpoint in it.
    ``honours_ids=True`` is your promise that the endpoint applies no id twice. ``timeout_s`` is how
    long a batch is tried again before its outcome is called unknown; that is logged, and the batch
    is retried. ``parallel`` parts are delivered at once; above 1, order is kept within each part
    only. ``accepts`` is given every batch at prepare and returns a boolean per row, true for those
    that are taken, with one reason for the others: they are refused, for a dead-letter sink, which
    after the decision they cannot be.
    """

    deliver: Deliver | Endpoint
    folder: str | os.PathLike[str]
    name: str = ""
    batch_rows: int = 500
    honours_ids: bool = False
    timeout_s: float = 30.0
    parallel: int = 1
    accepts: Accepts | None = None
    # The only field that is not a setting.
    _retry_after: RetryAfter = field(default_factory=RetryAfter, init=False, compare=False)

    def __post_init__(self) -> None:
        """Make name and folder definite here, as executors work in other folders."""
        _check_callable("deliver", self.deliver, endpoint=True)
        if self.accepts is not None:
            _check_callable("accepts", self.accepts, endpoint=False)
        name = self.name or self._endpoint.name
        if not name or not isinstance(name, str):
            raise BadSink(
                "this endpoint has no name of its own: give the sink one that will stay the same, "
                f'WriteAheadSink(..., name="shop"). {NOTHING_WRITTEN}'
            )
        object.__setattr__(self, "name", name_from(name))
        object.__setattr__(self, "folder", f"file:{local_folder('folder', self.folder)}")
        for setting in ("batch_rows", "parallel"):
            value = getattr(self, setting)
            if not isinstance(value, int) or value < 1:
                raise BadSink(
                    f"{self!r}: {setting} must be 1 or more, not {value!r}. {NOTHING_WRITTEN}"
                )
        if not self.timeout_s > 0:
            raise BadSink(f"{self!r}: timeout_s must be more than 0. {NOTHING_WRITTEN}")

    def __getstate__(self) -> dict[str, Any]:
        """A moment of this process's clock means nothing in another."""
        return {**self.__dict__, "_retry_after": RetryAfter()}

    @property
    def default_name(self) -> str:
        """The endpoint's."""
        return self.name

    @property
    def _endpoint(self) -> Endpoint:
        if isinstance(self.deliver, Endpoint):
            return self.deliver
        return FunctionEndpoint(self.deliver)

    @property
    def _home(self) -> str:
        return join(os.fspath(self.folder), self.name)

    @property
    def staging_folder(self) -> str:
        """Beside what is remembered of the endpoint."""
        return join(self._home, "parts")

    @property
    def staging_folders(self) -> Iterable[str]:
        """Those of other endpoints, also such as were removed, in the same ``folder``."""
        return folders_in(os.fspath(self.folder), below="parts")

    @property
    def _state(self) -> str:
        return join(self._home, "state")

    @property
    def target_name(self) -> str:
        """The endpoint, and where it is."""
        target = self._endpoint.target
        return f"endpoint {self.name!r}" + (f" ({target})" if target else "")

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Can the sink travel, can the folder be written and locked, is the endpoint there?"""
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twice:
            raise BadSink(
                f"{self.target_name}: the rows have two columns named {twice[0]!r}, of which a row "
                f"can hold one. Rename one in rows=. {NOTHING_WRITTEN}"
            )
        self._check_travels()
        _check_folder(local_path(os.fspath(self.folder)))
        self._endpoint.check()
        target = self._endpoint.target
        return Capabilities(
            guarantee=Guarantee.EXACTLY_ONCE if self.honours_ids else Guarantee.AT_LEAST_ONCE,
            sentence=self._sentence(),
            target=f"write-ahead:{self._home}" + (f" → {target}" if target else ""),
            shared_disk=True,
            raised_by=""
            if self.honours_ids
            else "What raises it is an endpoint that drops repeats by id: honours_ids=True.",
            start_over=f"let the endpoint forget the query's rows, and delete "
            f"{local_path(self._state)}/{query.name}~* and {self.staging_area.pattern(query)}",
        )

    def open(self, query: QueryId, name: str) -> None:
        """Delete what crashes left half-written beside the ledger."""
        delete_temporaries(self._state)

    def _sentence(self) -> str:
        order = "in order" if self.parallel == 1 else "in order within each part"
        if self.honours_ids:
            return (
                "Each row takes effect once, as far as the endpoint drops rows whose id it has "
                f"seen, which honours_ids=True promises for it; rows are delivered {order}."
            )
        what = "the batch" if self.parallel == 1 else f"the up to {self.parallel} batches"
        return (
            f"No row is lost, and rows are delivered {order}; {what} of up to {self.batch_rows} "
            "rows that a crash or a lost answer finds in flight may be delivered again, with the "
            "same ids."
        )

    def _check_travels(self) -> None:
        from pyspark import cloudpickle

        try:
            cloudpickle.dumps(self)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 (a user's object may raise anything)
            raise BadSink(
                f"{self.target_name} cannot be sent to Spark's workers with the sink "
                f"({type(error).__name__}: {error}). Let it hold settings only: make connections, "
                "files and locks in Endpoint.open(), and leave them out in __getstate__. "
                f"{NOTHING_WRITTEN}"
            ) from None

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        """Stage the part; what could not be delivered is refused, while nothing is decided."""
        kept = (_without_refused(batch, self.accepts, part) for batch in rows if batch.num_rows)
        return self.stage(kept, part)

    def write_epoch(self, epoch: StagedEpoch) -> Outcome:
        """Deliver what is not delivered yet, in the order of parts and of the rows in each."""
        files = StateFiles(self._state, epoch.id.query.name, epoch.sink)
        files.make()
        settings = DeliverySettings(
            endpoint=self._endpoint,
            where=self.target_name,
            batch_rows=self.batch_rows,
            parallel=self.parallel,
            honours_ids=self.honours_ids,
            timeout_s=self.timeout_s,
            retry_after=self._retry_after,
        )
        delivery = EpochDelivery(settings, files, epoch)
        try:
            return delivery.run()
        finally:
            delivery.close()

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Return the newest epoch of which the endpoint may have rows."""
        return last_seen(self._state, query)


def _check_callable(setting: str, value: object, endpoint: bool) -> None:
    """A function is known by its name, in the next start and on other machines."""
    name = str(getattr(value, "__qualname__", ""))
    wanted = "a function of a module's top level" + (", or an Endpoint" if endpoint else "")
    what = ""
    if isinstance(value, type):
        what = f"the class {name} itself; make one: {name}(...)"
    elif "<" in name:
        what = f"{name}, which is created again in every run"
    elif inspect.iscoroutinefunction(getattr(value, "deliver", value)):
        what = f"{name or 'one'} that is async: nobody would await it"
    elif not callable(value) and not (endpoint and isinstance(value, Endpoint)):
        what = repr(type(value).__name__)
    if what:
        raise BadSink(f"{setting}= takes {wanted}, not {what}. {NOTHING_WRITTEN}")


def _check_folder(path: str) -> None:
    """Raise unless files can be made and locked there; the folder itself is made later."""
    folder = path
    while not os.path.lexists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise BadSink(
            f"folder {path} cannot be used ({folder}: {error.strerror}). It must be a folder in "
            "which this user can make files, on a file system that has file locks (flock). "
            f"{NOTHING_WRITTEN}"
        ) from error


def _without_refused(batch: pa.RecordBatch, accepts: Accepts | None, part: Part) -> pa.RecordBatch:
    """Refuse what cannot be delivered, or what ``accepts`` says no to; return the others."""
    import pyarrow.compute as pc

    batch = without_unreadable(batch, part)
    if accepts is None or not batch.num_rows:
        return batch
    good, reason = _ask(accepts, batch)
    return refuse(batch, pc.invert(good), reason, part)


def _ask(accepts: Accepts, batch: pa.RecordBatch) -> tuple[Any, str]:
    """Return what ``accepts`` says, if it makes sense; null is no."""
    import pyarrow as pa
    import pyarrow.compute as pc

    answer = accepts(batch)
    try:
        mask, reason = answer
        if isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        good = pc.fill_null(pa.array(mask, pa.bool_()), False)
        if len(good) != batch.num_rows or not isinstance(reason, str) or not reason:
            raise ValueError
    except (TypeError, ValueError):
        raise PrepareFailed(
            f"accepts= must return a boolean for each of {batch.num_rows} rows, true for those "
            "that are taken, and one reason for the others as text: (pa.array([True, ...]), "
            f"'why'). It returned {type(answer).__name__}. Nothing of the epoch was written."
        ) from None
    return good, reason
