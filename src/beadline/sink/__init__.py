"""The interface of a sink, and every name that its author needs: ``from beadline.sink import …``.

``interface`` defines what a sink must do so that each row appears in it exactly once. The other
modules hold what many sinks have in common: ``staged`` is the base class for systems that cannot
hold a prepared transaction, ``ledger`` reads what a target remembers of a query, ``refused`` finds
rows that a target can never take, and ``two_phase`` is the interface that Flink users know. Retries
with a deadline and the redaction of secrets come from ``beadline.shared``. The conformance suite,
``beadline.testing.suite``, tests whether a sink keeps the rules.
"""

from __future__ import annotations

from beadline.committable import Committable, Json
from beadline.errors import (
    NEW_QUERY,
    NOTHING_WRITTEN,
    BadSetting,
    BadSink,
    BeadlineError,
    CommitBlocked,
    CommitFailed,
    CorruptRecord,
    PrepareFailed,
    RowsRefused,
    TargetRestored,
    WrongCheckpoint,
)
from beadline.extras import require
from beadline.files.local import sync_path
from beadline.ids import EpochId, PartId, QueryId
from beadline.names import name_from
from beadline.points import reach
from beadline.shared.retry import (
    Denied,
    Rejected,
    Retries,
    Unavailable,
    Verdict,
    retry,
    running,
    starting,
    verdict,
)
from beadline.shared.secrets import NOT_SHOWN, SECRET_NAME, redacted
from beadline.sink.interface import (
    DEAD_LETTER_COLUMNS,
    AnySink,
    BoundSink,
    C,
    Capabilities,
    CommitResult,
    FrameSink,
    Guarantee,
    Outcome,
    Part,
    Prepared,
    Reason,
    Refuse,
    Seen,
    Sink,
    shown,
)
from beadline.sink.ledger import LEDGER, LedgerRows, check_previous, holds, way_out
from beadline.sink.refused import (
    PER_DAY,
    far_dates,
    larger_than,
    not_utf8,
    nulls,
    refuse,
    without_far_dates,
    without_unreadable,
)
from beadline.sink.staged import (
    OutcomeUnknown,
    PartsDamaged,
    StagedEpoch,
    StagedPart,
    StagedSink,
    Staging,
    check_settings,
    check_writable,
    delete_temporaries,
    folders_in,
    local_folder,
)
from beadline.sink.two_phase import TwoPhaseCommitSink

__all__ = [
    "DEAD_LETTER_COLUMNS",
    "LEDGER",
    "NEW_QUERY",
    "NOTHING_WRITTEN",
    "NOT_SHOWN",
    "PER_DAY",
    "SECRET_NAME",
    "AnySink",
    "BadSetting",
    "BadSink",
    "BeadlineError",
    "BoundSink",
    "C",
    "Capabilities",
    "CommitBlocked",
    "CommitFailed",
    "CommitResult",
    "Committable",
    "CorruptRecord",
    "Denied",
    "EpochId",
    "FrameSink",
    "Guarantee",
    "Json",
    "LedgerRows",
    "Outcome",
    "OutcomeUnknown",
    "Part",
    "PartId",
    "PartsDamaged",
    "PrepareFailed",
    "Prepared",
    "QueryId",
    "Reason",
    "Refuse",
    "Rejected",
    "Retries",
    "RowsRefused",
    "Seen",
    "Sink",
    "StagedEpoch",
    "StagedPart",
    "StagedSink",
    "Staging",
    "TargetRestored",
    "TwoPhaseCommitSink",
    "Unavailable",
    "Verdict",
    "WrongCheckpoint",
    "check_previous",
    "check_settings",
    "check_writable",
    "delete_temporaries",
    "far_dates",
    "folders_in",
    "holds",
    "larger_than",
    "local_folder",
    "name_from",
    "not_utf8",
    "nulls",
    "reach",
    "redacted",
    "refuse",
    "require",
    "retry",
    "running",
    "shown",
    "starting",
    "sync_path",
    "verdict",
    "way_out",
    "without_far_dates",
    "without_unreadable",
]
