"""One fault, done to a running round: start a child, hurt it, and see what became of it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from beadline.chaos import processes
from beadline.chaos.child import Child
from beadline.chaos.outside import strike as strike_from_outside
from beadline.chaos.plan import GROUP, MOMENT
from beadline.chaos.verify import scratch
from beadline.chaos.verify.compare import Kind, Violation
from beadline.chaos.verify.faults import CUT, EXPIRE, PAUSE, Fault
from beadline.chaos.verify.rounds import Round

# After a fault that the child survives it goes on for so many epochs, and is then stopped: the
# range must last for other faults.
_EPOCHS_AFTER = 2
_EPOCHS_OF_HEIR = 2
_CUT_S = (1.0, 4.0)
_EVENTS_MAX = 8
# Of the time that a start may take: how long one that was woken has to find out.
_ZOMBIE_SHARE = 0.25
EXPIRY_S = 10.0
# Brokers look every ten seconds for what has expired.
_EXPIRED_AFTER_S = EXPIRY_S + 13.0
_LOOK_EVERY_S = 0.02
_COMPLAINT_CHARACTERS = 600
_OUT_OF_MEMORY = "the machine may be short of memory (dmesg tells), so nothing is known"


@dataclass(frozen=True)
class Struck:
    """What became of a fault: how many signals or cuts hit, and what was wrong at once.

    ``unclear`` says why nobody knows: a start did not end, which may be the machine's doing.
    """

    hits: int = 0
    note: str = ""
    found: list[Violation] = field(default_factory=list)
    unclear: str = ""


def strike(run: Round, fault: Fault, seed: int) -> Struck:
    """Do it; every child that was started has ended, or is a zombie on purpose."""
    rng = random.Random(f"{seed} {fault}")
    if fault.what == PAUSE:
        return _pause(run, fault)
    if fault.what.startswith(CUT):
        return _cut(run, fault.what.partition(":")[2], rng)
    if fault.what == EXPIRE:
        return _expire(run)
    assert fault.kill is not None
    if fault.kill.point == MOMENT:
        return _kill_at_a_moment(run, fault, rng)
    return _kill_at_a_point(run, fault)


def drain(run: Round) -> Struck:
    """Start once more, undisturbed, until the range is worked off."""
    child = run.start()
    return _ended(run, child, "the undisturbed start after the faults", killed=False)


def _kill_at_a_point(run: Round, fault: Fault) -> Struck:
    kill = fault.kill
    assert kill is not None
    mark = _mark(run)
    child = run.start(
        {
            "BEADLINE_CRASH": f"{kill.point}#{kill.occurrence}",
            "BEADLINE_CRASH_MARK": str(mark),
            "BEADLINE_CRASH_SCOPE": GROUP if kill.scope == GROUP else "process",
        }
    )
    if kill.survived:
        _wait(run, child, mark.exists)
        _go_on_a_little(run, child)
    ended = _ended(run, child, str(fault), killed=_must_be_dead(run, child, mark, kill.survived))
    return replace(ended, hits=int(mark.exists()))


def _must_be_dead(run: Round, child: Child, mark: Path, survived: bool = False) -> bool:
    """Whether a child must have died of its order; waits for its end, if that is near."""
    if survived:
        return False
    _wait(run, child, lambda: False)
    return mark.exists()


def _kill_at_a_moment(run: Round, fault: Fault, rng: random.Random) -> Struck:
    kill = fault.kill
    assert kill is not None
    child = run.start()
    hits = strike_from_outside(child, kill.scope, rng, run.timeout_s)
    if kill.survived:
        _go_on_a_little(run, child)
    if _code(run, child) == 0 and not kill.survived:
        hits = 0  # it had just ended when the signal came
    killed = hits > 0 and not kill.survived
    return replace(_ended(run, child, str(fault), killed=killed), hits=hits)


def _pause(run: Round, fault: Fault) -> Struck:
    """The driver sleeps; another start takes over and goes on; then the sleeper wakes."""
    assert fault.kill is not None
    mark = _mark(run)
    sleeper = run.start(
        {
            "BEADLINE_CRASH": f"{fault.kill.point}#{fault.kill.occurrence}",
            "BEADLINE_CRASH_MARK": str(mark),
            "BEADLINE_CRASH_SCOPE": "pause",
        }
    )
    _wait(run, sleeper, mark.exists)
    if not mark.exists():
        return _ended(run, sleeper, str(fault), killed=False)
    _wait(run, sleeper, lambda: processes.state(sleeper.pid) == processes.ASLEEP)
    heir = run.start()
    _wait(run, heir, lambda: _committed(heir) >= _EPOCHS_OF_HEIR)
    os.kill(sleeper.pid, signal.SIGCONT)
    deadline_s = time.monotonic() + run.timeout_s * _ZOMBIE_SHARE
    while sleeper.alive and time.monotonic() < deadline_s:
        time.sleep(_LOOK_EVERY_S)
    note = ""
    if sleeper.alive:
        note = "the sleeper did not end by itself, and was killed"
        processes.kill_group(sleeper.pid)
    note = note or f"woken, it ended with {_code(run, sleeper)}"
    run.ask_to_stop()
    ended = _ended(run, heir, f"the start that took over in {fault}", killed=False)
    return replace(ended, hits=1, note=note)


def _cut(run: Round, how: str, rng: random.Random) -> Struck:
    """Hinder the network for a few seconds; a query may stop over it, if the next one goes on."""
    child = run.start()
    child.wait_for_events(rng.randint(1, _EVENTS_MAX), run.timeout_s)
    time.sleep(rng.uniform(0, 0.5))
    hits = 0
    if child.alive:
        for proxy in run.proxies:
            getattr(proxy, how)()
            hits += 1
        time.sleep(rng.uniform(*_CUT_S))
        for proxy in run.proxies:
            if how != "cut":
                proxy.cut()  # what was held back never arrives
            proxy.restore()
    _go_on_a_little(run, child)
    code = _code(run, child)
    if code is None:
        return Struck(hits, unclear=_not_ended(run, f"cut:{how}", child))
    return Struck(hits, "" if code == 0 else f"the query stopped: {_said(child)}")


def _expire(run: Round) -> Struck:
    """Die with everything decided and nothing committed, until the servers have forgotten it."""
    mark = _mark(run)
    sinks = {}
    for name, sink in run.task.sinks.items():
        hurried = scratch.store_of(name, sink).hurried
        sinks[name] = sink if hurried is None else hurried(sink, EXPIRY_S)
    child = run.start(
        {
            "BEADLINE_CRASH": "decide.after",
            "BEADLINE_CRASH_MARK": str(mark),
            "BEADLINE_CRASH_SCOPE": GROUP,
        },
        sinks=sinks,
    )
    ended = _ended(run, child, EXPIRE, killed=_must_be_dead(run, child, mark))
    if mark.exists():
        time.sleep(_EXPIRED_AFTER_S)
    return replace(ended, hits=int(mark.exists()), note=f"away for {_EXPIRED_AFTER_S:.0f} s")


def _mark(run: Round) -> Path:
    return run.folder / f"mark-{len(run.children):03d}"


def _wait(run: Round, child: Child, ready: Callable[[], bool]) -> None:
    """Wait until it is so, or the child has ended."""
    deadline_s = time.monotonic() + run.timeout_s
    while child.alive and not ready() and time.monotonic() < deadline_s:
        time.sleep(_LOOK_EVERY_S)


def _committed(child: Child) -> int:
    return sum(1 for line in child.events if line["kind"] == "committed")


def _go_on_a_little(run: Round, child: Child) -> None:
    """Let it work for some epochs more, then stop it as a user would."""
    wanted = _committed(child) + _EPOCHS_AFTER
    _wait(run, child, lambda: _committed(child) >= wanted)
    run.ask_to_stop()


def _ended(run: Round, child: Child, what: str, *, killed: bool) -> Struck:
    """See that a child ended as it must; one that did not end proves nothing."""
    code = _code(run, child)
    if code is None:
        return Struck(unclear=_not_ended(run, what, child))
    wanted = -signal.SIGKILL if killed else 0
    if code == wanted:
        return Struck()
    if code == -signal.SIGKILL:
        return Struck(unclear=f"{what}: the start was killed by somebody else: {_OUT_OF_MEMORY}")
    text = f"{what}: the query ended with {code}, not with {wanted}: {_said(child)}"
    return Struck(found=[Violation(Kind.STOPPED, "", text)])


def _code(run: Round, child: Child) -> int | None:
    """How a child ended; it is ended, and the answer is None, if it did not by itself."""
    try:
        code = child.wait(run.timeout_s)
    except TimeoutError:
        return None
    return None if child.timed_out else code


def _not_ended(run: Round, what: str, child: Child) -> str:
    """Say it with what would make it clear."""
    return (
        f"{what}: a start did not end in {run.timeout_s:.0f} s, so nothing is known. Give it more "
        f"with --timeout, or the machine less to do; its last words: {_said(child) or 'none'}"
    )


def _said(child: Child) -> str:
    return " ".join(child.complaint().split())[-_COMPLAINT_CHARACTERS:]
