"""More ways to play a schedule: parts that get lost, other modes, appends that fail."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate

from beadline.errors import BeadlineError, CommitFailed, DecisionUnknown, NotDeterministic
from beadline.points import hooked
from beadline.protocol.coordinator import Coordinator
from beadline.protocol.epoch import Epoch, State
from beadline.protocol.run import Run
from beadline.sink import Guarantee
from tests.model.explore import OVERTAKEN, TO_THE_END, Schedule, crashed, finish, play_turns
from tests.model.model import (
    Crash,
    Make,
    ModelServer,
    ModelWorld,
    Setting,
    Violation,
    crash_at,
    drive,
    start_only,
)
from tests.model.server import PARTS


def expire_one(world: ModelWorld) -> bool:
    """Lose one prepared part, a decided one if there is one."""
    for name, server in world.servers.items():
        if name.startswith(PARTS) and server.prepared:
            waiting = [p for p in server.prepared if p in world.store.decided[name]]
            server.expire((waiting or list(server.prepared))[0])
            return True
    return False


class Expiring:
    """A hook that loses a part at some points, counted over all drivers; the first may die there.

    The schedule holds the first point and then the steps from each to the next.
    """

    def __init__(self, world: ModelWorld, schedule: Schedule, crash: bool) -> None:
        self.world = world
        self.crash = crash
        self.points = list(accumulate(schedule, lambda point, steps: point + steps + 1))
        self.passed = -1

    def __call__(self, point: str) -> None:
        self.passed += 1
        self.world.look(point)
        if self.passed in self.points:
            expire_one(self.world)
            if self.crash and self.passed == self.points[0]:
                raise Crash(point)

    @property
    def used(self) -> int:
        """How many of the points there were."""
        return sum(point <= self.passed for point in self.points)


def play_lost(setting: Setting, schedule: Schedule, crash: bool = False) -> int:
    """Parts get lost at these points; they are replayed, once."""
    world = ModelWorld(setting)
    hook = Expiring(world, schedule, crash)
    with hooked(hook):
        try:
            drive(world)
        except Crash:
            drive(world)
    finish(world)
    return hook.used


def play_lost_unlike(setting: Setting, schedule: Schedule, crash: bool = False) -> int:
    """A part gets lost and the plan is not deterministic: it stops, and publishes nothing."""
    world = ModelWorld(setting)
    stopped = 0
    expiring = Expiring(world, schedule, crash)
    for hook in (expiring, world.look, world.look):
        try:
            with hooked(hook):
                drive(world)
        except NotDeterministic:
            stopped += 1
        except Crash:
            continue
    lost = any(
        server.expired & world.store.decided[name].keys() for name, server in world.servers.items()
    )
    if lost and stopped < 2:
        raise Violation("lost, not deterministic, and it continued all the same")
    if any(decision.replays for decision in world.store.decisions):
        raise Violation("other rows than were decided have been decided again")
    if not lost and (stopped or world.last_committed() != setting.epochs - 1):
        raise Violation("nothing was lost, and it stopped")
    return expiring.used


def play_stop(setting: Setting, schedule: Schedule) -> int:
    """A stops cleanly an epoch early; B has taken over before, and is at some point of its run."""
    return play_turns(setting, schedule[:2], lambda world: drive(world, epochs=setting.epochs - 1))


def play_moved(setting: Setting, schedule: Schedule) -> int:
    """A driver dies, and one of two sinks on its system is moved under its name; another dies."""
    world = ModelWorld(setting)
    stays, moves = world.servers
    old = world.servers[moves] = world.servers[stays]
    used = 0
    for number in schedule:
        try:
            with hooked(crash_at(number)):
                drive(world, drop=_may_drop(world, moves) if used else ())
        except Crash:
            used += 1
        else:
            break
        if used == 1:
            world.servers[moves] = ModelServer("elsewhere")
    drive(world, drop=_may_drop(world, moves))
    start_only(world)
    servers = (old, world.servers[moves])
    if left := [str(part) for server in servers for part in server.prepared]:
        raise Violation(f"left in doubt: {left}")
    wanted = {row for epoch in world.committed for row in world.rows(epoch)}
    dropped = {row for _, epoch in world.store.given_up for row in world.rows(epoch)}
    for name in (stays, moves):
        shown = [
            row
            for server in dict.fromkeys(servers)
            for part, rows in server.visible.items()
            for row in rows
            if part.sink == name
        ]
        lost = wanted - {*shown} - (dropped if name == moves else set())
        if lost or len(shown) > len({*shown}):
            raise Violation(f"{name}: lost {sorted(lost)}, shown {sorted(shown)}")
    return used


def _may_drop(world: ModelWorld, name: str) -> list[str]:
    """The log knows no sink before there is a claim."""
    return [name] if world.store.data else []


STUCK = 1  # the epoch that a sink never takes


def play_stuck(setting: Setting, name: str, schedule: Schedule) -> int:
    """A sink never takes an epoch; drivers die at these points while ``drop=`` gives it up."""
    world = ModelWorld(setting)
    world.servers[name].stuck = [STUCK]
    with suppress(CommitFailed), hooked(world.look):
        drive(world)
    used = 0
    for number in schedule:
        try:
            with hooked(crash_at(number, world)):
                _give_up(world, name)
        except Crash:
            used += 1
        else:
            break
    with hooked(world.look):
        _give_up(world, name)
        start_only(world)
    if world.committed != {*range(setting.epochs)} or world.store.given_up != {(name, STUCK)}:
        raise Violation(f"committed {world.committed}, given up {world.store.given_up}")
    for each, server in world.servers.items():
        kept = world.committed - ({STUCK} if each == name else set())
        if sorted(server.rows()) != sorted(row for epoch in kept for row in world.rows(epoch)):
            raise Violation(f"{each}: shows {sorted(server.rows())}")
        if server.prepared:
            raise Violation(f"{each}: left in doubt: {[*map(str, server.prepared)]}")
    return used


def _give_up(world: ModelWorld, name: str) -> None:
    """What an operator does: the name alone, and the epoch too where an error asks for it."""
    try:
        drive(world, drop=[name])
    except CommitFailed:
        drive(world, drop=[f"{name}@{STUCK}"])


class Witnessed(Coordinator):
    """At-least-once, noting the epochs that it may have shown without a decision."""

    def __init__(self, run: Run) -> None:
        super().__init__(replace(run, mode=Guarantee.AT_LEAST_ONCE))

    def publish(self, epoch: Epoch) -> State:
        world = self.run.progress
        assert isinstance(world, ModelWorld)
        world.published.add(epoch.number)
        return super().publish(epoch)


MODES: dict[str, Make] = {"exactly": Coordinator, "at-least": Witnessed}


def play_modes(setting: Setting, modes: tuple[str, ...], schedule: Schedule) -> int:
    """Each driver has its own mode: nothing is lost, and what was only decided shows once."""
    world = ModelWorld(setting)
    used = 0
    for mode, number in zip(modes, schedule, strict=False):
        if not crashed(world, number, MODES[mode]):
            break
        used += 1
    finish(world, at_least=True, of=MODES[modes[-1]])
    check_once(world)
    return used


def play_zombie_modes(setting: Setting, modes: tuple[str, str, str], schedule: Schedule) -> int:
    """A sleeps at p, B of another mode dies at q or not, A resumes, C finishes."""
    world = ModelWorld(setting)
    world.alone = False
    first, second, last = (MODES[mode] for mode in modes)
    sleep_at, die_at = (*schedule, TO_THE_END)[:2]
    passed = -1
    used = 0

    def hook(point: str) -> None:
        nonlocal passed, used
        passed += 1
        if passed == sleep_at:
            used = 1 + crashed(world, die_at, second)

    try:
        with hooked(hook):
            drive(world, first)
    except OVERTAKEN:
        assert used, "fenced, and nobody else was there"
    drive(world, last)
    start_only(world, last)
    # Where the zombie's Spark has committed an epoch that B had decided, B's parts are not
    # committed any more, and stay in doubt until another decision is the newest.
    for (name, _), parts in world.store.newest.items():
        for part in parts:
            world.servers[name].prepared.pop(part, None)
    world.check_end(at_least=True)
    return min(used, len(schedule))


def check_once(world: ModelWorld) -> None:
    """Epochs that no at-least-once driver has given are there once, as ever."""
    for name, server in world.servers.items():
        shown = Counter(server.rows())
        for epoch in world.committed - world.published:
            if any(shown[row] != 1 for row in world.rows(epoch, name)):
                raise Violation(f"{name}: epoch {epoch}, decided and never published, is doubled")


class Stopped(RuntimeError):
    """What ``stop()`` makes of the callback's thread: an error in the middle of anything."""


def play_errors(setting: Setting, schedule: Schedule, asleep: bool = False) -> int:
    """A driver ends by an error, so that its clearing up runs too; the next one dies, or not.

    With ``asleep``, that next one runs before the error: a zombie clears up.
    """
    world = ModelWorld(setting)
    world.alone = not asleep
    fail_at, die_at = (*schedule, TO_THE_END)[:2]
    passed = -1
    used = 0

    def hook(point: str) -> None:
        nonlocal passed, used
        world.look(point)
        passed += 1
        if passed == fail_at:
            used = 1 + (asleep and crashed(world, die_at))
            raise Stopped(point)

    try:
        with hooked(hook):
            drive(world)
    except (Stopped, BeadlineError):
        assert used, "an error that nobody made"
    world.look("error")
    if used and not asleep:
        used += crashed(world, die_at)
    finish(world)
    return min(used, len(schedule))


def play_failing_append(setting: Setting, schedule: Schedule, landed: bool) -> int:
    """The n-th append fails, having landed or not; then a driver dies at its number."""
    world = ModelWorld(setting)
    if landed:
        world.store.fail_at = schedule[0] + 1
    else:
        world.store.refuse_at = schedule[0] + 1
    try:
        with hooked(world.look):
            drive(world)
        unknown = False
    except DecisionUnknown:
        unknown = True
    failed = world.store.creates > schedule[0]
    world.store.fail_at = world.store.refuse_at = 0
    if unknown != (failed and not landed):
        raise Violation(f"unknown={unknown}, landed={landed}")
    if len(schedule) > 1 and not crashed(world, schedule[1]):
        return 1
    finish(world)
    return len(schedule) if failed else 0
