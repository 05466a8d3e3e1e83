"""Longer runs by Hypothesis: several drivers at once, deaths, expiries, sinks that come and go.

Hypothesis chooses who moves how far and what goes wrong in between, and shrinks what fails to a
few steps. The seed of the run is its seed too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from beadline.decisions import DecisionLog
from beadline.errors import (
    BadSetting,
    CheckpointProblem,
    PartLost,
    TargetRestored,
    WrongCheckpoint,
)
from beadline.points import hooked
from tests.conftest import is_long
from tests.model.explore import Actor, Stage
from tests.model.model import ModelServer, ModelWorld, Setting, Violation, drive, start_only
from tests.model.plays import expire_one
from tests.model.server import LEDGER, PARTS
from tests.model.world import NAME

EPOCHS = 8
DRIVERS_MAX = 4
NAMES = ("parts0", "ledger1", "parts2")


@contextmanager
def failing() -> Iterator[None]:
    """Hypothesis shrinks and prints what is an ``Exception``; it lets all else pass."""
    try:
        yield
    except Violation as error:
        raise AssertionError(str(error)) from error


class Runs(RuleBasedStateMachine):
    """One world; drivers come, sleep, wake and die."""

    keep = 2
    stateful = True
    sinks_change = False
    restores = False

    def __init__(self) -> None:
        super().__init__()
        kinds = (PARTS, LEDGER, PARTS) if self.sinks_change else (PARTS, LEDGER)
        self.setting = Setting(EPOCHS, stateful=self.stateful, keep=self.keep, kinds=kinds)
        self.world = ModelWorld(self.setting)
        self.stage = Stage(self.world)
        self.stage.__enter__()
        self.names = set(self.world.servers)

    @property
    def live(self) -> list[Actor]:
        return [actor for actor in self.stage.actors if not actor.done]

    def driver(self, names: frozenset[str], drop: frozenset[str]) -> Callable[[], None]:
        """One start; a sink that is missed may refuse it, but the checkpoint is never doubted."""

        def run() -> None:
            try:
                drive(self.world, names=names, drop=drop)
            except WrongCheckpoint:
                raise
            except (BadSetting, CheckpointProblem, PartLost, TargetRestored):
                return

        return run

    @rule(steps=st.integers(0, 250), drop=st.booleans())
    def start(self, steps: int, drop: bool) -> None:
        """A new driver; the oldest of too many dies."""
        if len(self.live) >= DRIVERS_MAX:
            self.live[0].kill()
        dropped = frozenset(NAMES if drop and self.sinks_change else ())
        actor = self.stage.actor(self.driver(frozenset(self.names), dropped))
        with failing():
            actor.go(steps)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, DRIVERS_MAX - 1), steps=st.integers(1, 250))
    def wake(self, which: int, steps: int) -> None:
        """One of the drivers moves on."""
        with failing():
            self.live[which % len(self.live)].go(steps)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, DRIVERS_MAX - 1))
    def die(self, which: int) -> None:
        """One of the drivers is killed where it stands."""
        self.live[which % len(self.live)].kill()

    @rule()
    def expire(self) -> None:
        """An outside system loses a prepared part."""
        expire_one(self.world)

    @precondition(lambda self: self.sinks_change)
    @rule(name=st.sampled_from(NAMES))
    def remove_or_add(self, name: str) -> None:
        """Later starts have one sink less, or more."""
        if self.names != {name}:
            self.names ^= {name}

    @precondition(lambda self: self.sinks_change)
    @rule(name=st.sampled_from(NAMES))
    def move(self, name: str) -> None:
        """Later starts have the sink point elsewhere."""
        self.world.move(name)

    @precondition(lambda self: self.restores)
    @rule(name=st.sampled_from(NAMES[:2]), epochs=st.integers(1, 3))
    def restore(self, name: str, epochs: int) -> None:
        """A server loses its newest epochs: a backup is restored, or a replica takes over."""
        server = self.world.servers[name]
        seen = server.seen.pop(NAME, None)
        if seen is None:
            return
        holds = seen.epoch - epochs
        for part in [part for part in server.visible if part.epoch > holds]:
            del server.visible[part]
        if held := [part.epoch for part in server.visible]:
            server.seen[NAME] = replace(seen, epoch=max(held), nonce="")

    def teardown(self) -> None:
        """A last driver finishes; one epoch more, so that nothing but old parts is named."""
        self.stage.__exit__(None, None, None)
        with failing():
            self.finish()

    def finish(self) -> None:
        """Run to the end and compare."""
        with hooked(self.world.look):
            drive(self.world, drop=self.everything(), epochs=EPOCHS + 1)
            drive(self.world, epochs=EPOCHS + 2)
            start_only(self.world)
        self.world.look("end")
        for name, server in (*self.world.servers.items(), *self.world.retired):
            self.check(name, server)

    def everything(self) -> set[str]:
        """What a last start may have to give up: holes, and an epoch that nobody can finish."""
        if not self.sinks_change:
            return set(self.world.servers) if self.restores else set()
        epoch = self.world.store.decisions[-1].epoch if self.world.store.decisions else None
        return {*NAMES} | {f"{name}@{epoch}" for name in NAMES if epoch is not None}

    def accepted(self, name: str, epoch: int) -> bool:
        """Whether the log says that a sink lacks an epoch."""
        claim = DecisionLog(self.world.store).open().claim
        assert claim is not None
        spans = [span for one in claim.histories if one.name == name for span in one.missing]
        return any(first <= epoch <= last for first, last in spans)

    def check(self, name: str, server: ModelServer) -> None:
        """Every epoch that was decided for this sink is there once; one given up, at most once."""
        world, store = self.world, self.world.store
        assert world.last_committed() == EPOCHS + 1
        shown = Counter(server.rows())
        wanted: Counter[str] = Counter()
        for (of, epoch), target in store.target.items():
            if of == name and target == server.target:
                rows = Counter(world.rows(epoch))
                lacks = (name, epoch) in store.given_up or self.accepted(name, epoch)
                wanted += rows & shown if lacks else rows
        if shown != wanted:
            raise Violation(f"{name}: lost {wanted - shown}, too many {shown - wanted}")
        if server is world.servers[name] and server.prepared:
            raise Violation(f"{name}: left in doubt: {[*map(str, server.prepared)]}")


class StatelessRuns(Runs):
    stateful = False
    keep = 100


class SinksChange(Runs):
    sinks_change = True


class TargetsRestored(Runs):
    """Whatever a server lost is named by the log, or is there."""

    restores = True


SETTINGS = settings(
    max_examples=500 if is_long() else 60,
    stateful_step_count=60 if is_long() else 30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    database=None,
)
TestRuns = Runs.TestCase
TestStatelessRuns = StatelessRuns.TestCase
TestSinksChange = SinksChange.TestCase
TestTargetsRestored = TargetsRestored.TestCase
for case in (TestRuns, TestStatelessRuns, TestSinksChange, TestTargetsRestored):
    case.settings = SETTINGS
