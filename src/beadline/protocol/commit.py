"""Commit: every sink makes its parts of a decided epoch visible, until every outcome is known."""

from __future__ import annotations

import errno
import logging
import math
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from typing import Any

from beadline.decisions import Decision
from beadline.errors import (
    BeadlineError,
    CommitBlocked,
    CommitFailed,
    TargetRestored,
    UsageError,
    without_meaning,
)
from beadline.ids import EpochId
from beadline.points import reach
from beadline.protocol import identity
from beadline.protocol.epoch import Lost
from beadline.protocol.run import Run
from beadline.protocol.targets import previous_epochs
from beadline.protocol.threads import Helpers
from beadline.shared.retry import Retries, Verdict
from beadline.sink import BoundSink, Outcome, Prepared, way_out

logger = logging.getLogger("beadline")

# Errors from a sink's own code that say nothing about rows.
_NO_WAY_IN = (PermissionError, ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError)
_NO_WAY_IN_CODES = frozenset(
    (
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENODEV),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOTCONN, errno.ENETDOWN),
        *(errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    )
)
# Nothing decided is ever dropped: there is no deadline (rule 14).
_FOR_EVER = {Verdict.UNCLEAR: math.inf}


def commit(run: Run, decision: Decision, sinks: Sequence[BoundSink]) -> Lost:
    """Commit a decided epoch to sinks, all at once; return the parts that are proven lost."""
    # What each sink must hold by now (rule 25).
    previous = previous_epochs(run.log.state, sinks, of_newest=True)

    def one(sink: BoundSink) -> tuple[str, list[Prepared[Any]]]:
        held = previous.get(sink.name, -1)
        epoch = EpochId(run.query, decision.epoch, decision.nonce, decision.at_ms, held)
        lost = commit_sink(sink, epoch, run.parts(decision, sink), run.helpers)
        reach("commit.between")
        return sink.name, lost

    named = [sink for sink in sinks if decision.sinks.get(sink.name)]
    results = run.helpers.run_all([partial(one, sink) for sink in named])
    lost = {name: parts for name, parts in results if parts}
    if not lost:
        reach("commit.after")
    return lost


def commit_sink(
    sink: BoundSink, epoch: EpochId, parts: list[Prepared[Any]], helpers: Helpers
) -> list[Prepared[Any]]:
    """Commit one sink until every outcome is known; return what is lost."""
    lost: list[Prepared[Any]] = []
    retries = Retries(_FOR_EVER)
    while True:
        try:
            result = sink.sink.commit(epoch, parts)
        except TargetRestored as error:
            other = ""
            if error.held is not None:
                other = (
                    f'; or give its missing rows up with start(..., drop=["{sink.name}"]), once.'
                )
            where = f"sink {sink.name!r} ({sink.capabilities.target})"
            restored = TargetRestored(f"{where}, {error}{other}")
            restored.held = error.held
            raise restored from error
        except UsageError as error:
            raise _failed(sink, epoch, without_meaning(str(error)), stuck=True) from error
        except BeadlineError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            if _is_blocked(error):
                raise _failed(sink, epoch, said, CommitBlocked) from error
            raise _failed(sink, epoch, said, stuck=True) from error
        lost += [p for p in parts if result.outcomes.get(p.id) is Outcome.LOST]
        # A part that the sink did not mention is as unknown as one that it reported as unknown.
        parts = [p for p in parts if result.outcomes.get(p.id, Outcome.UNKNOWN) is Outcome.UNKNOWN]
        if not parts:
            return lost
        if helpers.stopping():
            raise _failed(sink, epoch, result.detail or "the outcome is still unknown")
        why = result.detail or "the outside system does not say"
        logger.warning("sink %s, epoch %s: outcome unknown: %s", sink.name, epoch.number, why)
        retries.again(Verdict.UNCLEAR)


def _is_blocked(error: Exception) -> bool:
    """Whether an error would be the same for any rows: a full disk, a server that is away."""
    code = error.errno if isinstance(error, OSError) else None
    return isinstance(error, _NO_WAY_IN) or code in _NO_WAY_IN_CODES


def _failed(
    sink: BoundSink,
    epoch: EpochId,
    why: str,
    kind: type[CommitFailed] = CommitFailed,
    *,
    stuck: bool = False,
) -> CommitFailed:
    """``stuck`` says that the sink may never take the epoch, so that giving it up is a way out."""
    meaning = "The epoch is decided and nothing of it is lost; the next start finishes it."
    if not epoch.nonce:  # at-least-once
        meaning = f"{identity.meaning_published(epoch.number)} The next start redelivers it."
    elif stuck:
        meaning = f"{meaning} {way_out(sink.name, epoch.number)}"
    return kind(
        f"query {epoch.query.name!r}, epoch {epoch.number}, sink {sink.name!r}: committing failed: "
        f"{why}. {meaning}"
    )
