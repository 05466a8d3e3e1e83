"""How schedules are played on the model, and how a failing one is told so that it can be replayed.

A schedule is a tuple of numbers. ``play_crashes`` reads it as "the first driver dies at its 12th
crash point, the next one at its 30th", ``play_zombie`` as "driver A sleeps at point p while others
run", and ``play_turns`` as turns of drivers that run at the same time, on threads of which one
moves at a time.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

from beadline.errors import Fenced
from beadline.points import hooked
from tests.model.model import (
    Crash,
    Make,
    ModelWorld,
    Setting,
    SparkConflict,
    crash_at,
    drive,
    start_only,
)

Schedule = tuple[int, ...]
Play = Callable[[Schedule], int]
# How a driver that was overtaken may end; everything else is a false alarm.
OVERTAKEN = (Fenced, SparkConflict)
TO_THE_END = 1_000_000


class ScheduleFailed(AssertionError):
    """A schedule broke a promise; the message replays it."""


@contextmanager
def told(schedule: Schedule) -> Iterator[None]:
    """Say which schedule it was, and how to play it alone."""
    try:
        yield
    except (KeyboardInterrupt, ScheduleFailed):
        raise
    except BaseException as error:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
        words = ",".join(map(str, schedule))
        raise ScheduleFailed(
            f"schedule={schedule}: {type(error).__name__}: {error}\n"
            f"replay: BEADLINE_SCHEDULE={words} .venv/bin/python -m pytest {test!r}"
        ) from error


def only() -> Schedule | None:
    """The one schedule that is to be replayed, if there is one."""
    text = os.environ.get("BEADLINE_SCHEDULE", "")
    return tuple(int(word) for word in text.split(",")) if text else None


def play_all(play: Play, schedules: Iterable[Schedule]) -> int:
    """Play these schedules; return how many."""
    one = only()
    tried = 0
    for schedule in schedules if one is None else [one]:
        with told(schedule):
            play(schedule)
        tried += 1
    return tried


def play_every(play: Play, depth: int) -> int:
    """Play every schedule of up to ``depth`` numbers; return how many.

    ``play`` answers how many numbers of its schedule were used: a number beyond the end of a run
    is not, and then there is no need to try greater ones.
    """
    if only() is not None:
        return play_all(play, ())

    def below(prefix: Schedule) -> int:
        tried = 0
        for number in itertools.count():
            schedule = (*prefix, number)
            with told(schedule):
                used = play(schedule)
            tried += 1
            if used < len(schedule):
                return tried
            if len(schedule) < depth:
                tried += below(schedule)
        raise AssertionError("a run without an end")

    return below(())


def points(setting: Setting) -> int:
    """How many points an undisturbed run reaches."""
    passed: list[str] = []
    with hooked(passed.append):
        drive(ModelWorld(setting))
    return len(passed)


def sample(rng: random.Random, count: int, bounds: tuple[int, ...]) -> list[Schedule]:
    """Schedules chosen by the seed; a number beyond the end of a run means: undisturbed."""
    return [tuple(rng.randrange(bound) for bound in bounds) for _ in range(count)]


def crashed(world: ModelWorld, number: int, of: Make | None = None) -> bool:
    """Run a driver that dies at its ``number``-th crash point; False if it has none such."""
    try:
        with hooked(crash_at(number, world)):
            drive(world, of)
    except Crash:
        return True
    return False


def finish(world: ModelWorld, at_least: bool = False, of: Make | None = None) -> None:
    """Run a last driver undisturbed, and check the end."""
    world.alone = True
    with hooked(world.look):
        drive(world, of)
        if at_least or world.setting.losers:
            start_only(world, of)  # what the last epoch left behind is swept by the next start
    world.check_end(at_least)


def play_crashes(setting: Setting, schedule: Schedule) -> int:
    """One driver after the other, each dying at its number; then one that lives."""
    world = ModelWorld(setting)
    used = 0
    for number in schedule:
        if not crashed(world, number):
            break
        used += 1
    finish(world)
    return used


def play_zombie(setting: Setting, schedule: Schedule, again: bool = False) -> int:
    """A sleeps at its point p; B dies at q, or not; A resumes; C finishes.

    With ``again`` another driver runs to its end after B, while A still sleeps: two takeovers.
    """
    world = ModelWorld(setting)
    world.alone = False
    sleep_at, die_at = (*schedule, TO_THE_END)[:2]
    used = 0
    left = sleep_at

    def hook(point: str) -> None:
        nonlocal left, used
        world.look(point)
        if left == 0:
            used = 1 + crashed(world, die_at)
            if again:
                with hooked(world.look):
                    drive(world)
        left -= 1

    try:
        with hooked(hook):
            drive(world)
    except OVERTAKEN:
        assert used, "fenced, and nobody else was there"
    finish(world)
    return min(used, len(schedule))


class Killed(Crash):
    """An actor was told to die where it stood."""


class Actor:
    """A driver on a thread of its own that moves only when it is told how far."""

    def __init__(self, world: ModelWorld, run: Callable[[], None] | None = None) -> None:
        """Nothing moves before the first ``go``."""
        self.world = world
        self.run = run or (lambda: drive(world))
        self.left = 0
        self.done = False
        self.killed = False
        self.error: BaseException | None = None
        self.mine, self.others = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._main, daemon=True)

    def _main(self) -> None:
        _current.actor = self
        self.mine.acquire()
        try:
            self.run()
        except (*OVERTAKEN, Crash):
            pass
        except BaseException as error:  # noqa: BLE001 (raised again by what moves this driver)
            self.error = error
        self.done = True
        self.others.release()

    def reach(self, point: str) -> None:
        """Reach a point: check the world, and hand over when the turn is at its end."""
        self.world.look(point)
        if self.left == 0:
            self.others.release()
            self.mine.acquire()
            if self.killed:
                raise Killed(point)
        self.left -= 1

    def go(self, steps: int = TO_THE_END) -> None:
        """Advance by a number of points, or to the end."""
        if self.done:
            return
        if self.thread.ident is None:
            self.thread.start()
        self.left = steps
        self.mine.release()
        self.others.acquire()
        if self.done:
            self.thread.join()
            if self.error is not None:
                raise self.error

    def kill(self) -> None:
        """Die at the point where it stands."""
        if self.thread.ident is not None and not self.done:
            self.killed = True
            self.go()
        self.done = True


class Stage:
    """Where actors play; it sends each crash point to the actor that came by."""

    def __init__(self, world: ModelWorld) -> None:
        """Nobody is on it yet."""
        self.world = world
        world.alone = False
        self.actors: list[Actor] = []
        self._hooked = hooked(_reach)

    def __enter__(self) -> Stage:
        self._hooked.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for actor in self.actors:
            actor.kill()
        self._hooked.__exit__(kind, error, trace)

    def actor(self, run: Callable[[], None] | None = None) -> Actor:
        """Bring a driver on."""
        actor = Actor(self.world, run)
        self.actors.append(actor)
        return actor


class _Current(threading.local):
    actor: Actor


_current = _Current()


def _reach(point: str) -> None:
    _current.actor.reach(point)


def play_turns(
    setting: Setting, schedule: Schedule, first: Callable[[ModelWorld], None] = drive
) -> int:
    """A and B take turns of a number of points, then A ends, then B, then C finishes.

    ``first`` is what A runs, if not a whole run.
    """
    world = ModelWorld(setting)
    with Stage(world) as stage:
        one, other = stage.actor(lambda: first(world)), stage.actor()
        used = 0
        for actor, steps in zip(itertools.cycle((one, other)), schedule, strict=False):
            actor.go(steps)
            used += not actor.done
        one.go()
        other.go()
    finish(world)
    return used
