"""Logs for tests: records as the protocol would write them, without the protocol."""

from __future__ import annotations

import uuid
from pathlib import Path

from beadline.decisions import Claim, Decision, DecisionLog, FileStore
from beadline.files.local import LocalFiles
from beadline.ids import QueryId
from tests.memory_store import MemoryStore

QUERY = QueryId("orders", "0" * 32, "memory:/c")


def claim(log: DecisionLog) -> Claim:
    """The next start, as ``recover.claim`` would write it."""
    before = log.state.claim
    generation = before.generation + 1 if before else 1
    nonce = uuid.uuid4().hex
    return Claim(nonce, QUERY, generation, "exactly-once", -1, {}, log.state.decided_at, 0)


def decision(log: DecisionLog) -> Decision:
    """The next epoch, as ``decide`` would write it."""
    state = log.state
    assert state.claim is not None
    assert state.claim_at is not None
    epoch = state.decision.epoch + 1 if state.decision else 0
    nonce = uuid.uuid4().hex
    at = (state.claim_at, state.decided_at)
    return Decision(nonce, state.claim.generation, epoch, "", 0, {}, {}, *at, 0, 0, 0)


def opened(store: MemoryStore | FileStore, keep: int = 100, epochs: int = 0) -> DecisionLog:
    """A driver's log after its claim and a number of epochs."""
    log = DecisionLog(store, keep)
    log.open()
    log.append(claim(log))
    for _ in range(epochs):
        log.append(decision(log))
    return log


def on_disk(folder: Path) -> FileStore:
    store = FileStore(LocalFiles(), f"file:{folder}/log")
    store.make_folder()
    return store
