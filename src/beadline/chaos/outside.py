"""Kills from outside, at random moments: of the driver, of its whole group, of Python workers.

A moment is a number of events seen plus a fraction of a second, so that it falls into the epochs
and not, nearly always, into the seconds that a JVM takes to start. Now and then it does fall there.
"""

from __future__ import annotations

import random
import time

from beadline.chaos import processes
from beadline.chaos.child import CHILD_TIMEOUT_S, Child
from beadline.chaos.plan import GROUP, WORKER

_EVENTS_MAX = 10
_START_S = 6.0
_EPOCH_S = 0.5
# Less than the attempts that a task has (the driver's master): the query must live through it.
WORKER_KILLS_MAX = 3


def strike(child: Child, scope: str, rng: random.Random, timeout_s: float = CHILD_TIMEOUT_S) -> int:
    """Wait for the moment and kill; return how many kills hit somebody."""
    if scope == WORKER:
        return _strike_workers(child, rng, timeout_s)
    events = rng.randint(0, _EVENTS_MAX)
    delay_s = rng.uniform(0, _EPOCH_S if events else _START_S)
    if not child.wait_for_events(events, timeout_s):
        return 0
    time.sleep(delay_s)
    if not child.alive:
        return 0
    return int(processes.kill_group(child.pid) if scope == GROUP else processes.kill(child.pid))


def _strike_workers(child: Child, rng: random.Random, timeout_s: float) -> int:
    """Kill Python workers in mid-epoch, now and then the daemon that forks them."""
    child.wait_for_events(rng.randint(1, _EVENTS_MAX), timeout_s)
    kills = 0
    for _ in range(rng.randint(1, WORKER_KILLS_MAX)):
        victim = _find_worker(child, rng, timeout_s)
        if victim is None:
            break
        kills += processes.kill(victim)
        time.sleep(rng.uniform(0.05, _EPOCH_S))
    return kills


def _find_worker(child: Child, rng: random.Random, timeout_s: float) -> int | None:
    """One worker of the child's JVM, as soon as there is one."""
    deadline_s = time.monotonic() + timeout_s
    while child.alive and time.monotonic() < deadline_s:
        daemons, workers = child.python_workers()
        if workers:
            return rng.choice(daemons if daemons and rng.random() < 0.2 else workers)
        time.sleep(0.01)
    return None
