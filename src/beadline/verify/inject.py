"""One fault, injected into a round: start a driver, inject it, and check the outcome."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field, replace

from beadline.verify import processes, scratch
from beadline.verify.child import Child, kill_at_random
from beadline.verify.compare import Violation, ViolationKind
from beadline.verify.faults import CUT, EXPIRE, PAUSE, Fault
from beadline.verify.plan import GROUP, MOMENT, Kill
from beadline.verify.rounds import Round

# A child that survives a fault continues for this many epochs, and is then stopped: the range must
# last for other faults.
_EPOCHS_AFTER = 2
_EPOCHS_OF_SUCCESSOR = 2
_CUT_S = (1.0, 4.0)
_EVENTS_MAX = 8
# The share of a start's time that a driver has to end after it was woken.
_ZOMBIE_SHARE = 0.25
EXPIRY_S = 10.0
# Brokers look every ten seconds for what has expired.
_EXPIRED_AFTER_S = EXPIRY_S + 13.0
_DECIDED = Kill("decide.after", 1, GROUP)
_COMPLAINT_CHARACTERS = 600
_OUT_OF_MEMORY = "the machine may be short of memory (see dmesg), so the outcome is not known"


@dataclass(frozen=True)
class Injected:
    """The outcome of a fault: how many signals or cuts hit, and what was wrong at once.

    ``unclear`` says why the outcome is not known: a start did not end, perhaps because of the
    machine.
    """

    hits: int = 0
    note: str = ""
    found: list[Violation] = field(default_factory=list)
    unclear: str = ""


def inject(run: Round, fault: Fault, seed: int) -> Injected:
    """Inject a fault; every driver that was started has ended, or is a zombie on purpose."""
    rng = random.Random(f"{seed} {fault}")
    if fault.what.startswith(CUT):
        return _cut(run, fault.what.partition(":")[2], rng)
    if fault.what == EXPIRE:
        return _expire(run)
    assert fault.kill is not None
    if fault.what == PAUSE:
        return _pause(run, fault.kill, str(fault))
    if fault.kill.point == MOMENT:
        return _kill_at_a_moment(run, fault.kill, str(fault), rng)
    return _kill_at_a_point(run, fault.kill, str(fault))


def drain(run: Round) -> Injected:
    """Start once more, undisturbed, until the range is processed."""
    child = run.start(last=True)
    return _ended(run, child, "the undisturbed start after the faults", killed=False)


def _kill_at_a_point(run: Round, kill: Kill, what: str) -> Injected:
    mark = run.children.mark()
    child = run.start(kill.order(mark))
    if kill.survived:
        child.wait_until(mark.exists, run.timeout_s)
        _go_on(run, child)
        killed = False
    else:
        child.wait_until(lambda: False, run.timeout_s)
        killed = mark.exists()
    ended = _ended(run, child, what, killed=killed)
    return replace(ended, hits=int(mark.exists()))


def _kill_at_a_moment(run: Round, kill: Kill, what: str, rng: random.Random) -> Injected:
    child = run.start()
    hits = kill_at_random(child, kill.scope, rng, run.timeout_s)
    if kill.survived:
        _go_on(run, child)
    if _code(run, child) == 0 and not kill.survived:
        hits = 0  # it had just ended when the signal came
    killed = hits > 0 and not kill.survived
    return replace(_ended(run, child, what, killed=killed), hits=hits)


def _pause(run: Round, kill: Kill, what: str) -> Injected:
    """The driver is paused; another start takes over; then the paused one continues."""
    mark = run.children.mark()
    sleeper = run.start(kill.order(mark, "pause"))
    if not sleeper.wait_until(mark.exists, run.timeout_s):
        return _ended(run, sleeper, what, killed=False)
    sleeper.wait_until(lambda: sleeper.asleep, run.timeout_s)
    successor = run.start()
    successor.wait_until(lambda: successor.committed >= _EPOCHS_OF_SUCCESSOR, run.timeout_s)
    os.kill(sleeper.pid, signal.SIGCONT)
    sleeper.wait_until(lambda: False, run.timeout_s * _ZOMBIE_SHARE)
    note = ""
    if sleeper.alive:
        note = "the paused driver did not end by itself, and was killed"
        processes.kill_group(sleeper.pid)
    note = note or f"when continued, it ended with {_code(run, sleeper)}"
    run.ask_to_stop()
    ended = _ended(run, successor, f"the start that took over in {what}", killed=False)
    return replace(ended, hits=1, note=note)


def _cut(run: Round, how: str, rng: random.Random) -> Injected:
    """Cut the network for a few seconds; a query may stop then, if the next one continues."""
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
    _go_on(run, child)
    code = _code(run, child)
    if code is None:
        return Injected(hits, unclear=_not_ended(run, f"cut:{how}", child))
    return Injected(hits, "" if code == 0 else f"the query stopped: {_said(child)}")


def _expire(run: Round) -> Injected:
    """Die with everything decided and nothing committed, until the servers have forgotten it."""
    sinks = {}
    for name, sink in run.task.sinks.items():
        expiring = scratch.store_of(name, sink).with_timeout
        sinks[name] = sink if expiring is None else expiring(sink, EXPIRY_S)
    mark = run.children.mark()
    child = run.start(_DECIDED.order(mark), sinks=sinks)
    child.wait_until(lambda: False, run.timeout_s)
    ended = _ended(run, child, EXPIRE, killed=mark.exists())
    if mark.exists():
        time.sleep(_EXPIRED_AFTER_S)
    return replace(ended, hits=int(mark.exists()), note=f"away for {_EXPIRED_AFTER_S:.0f} s")


def _go_on(run: Round, child: Child) -> None:
    """Let it process some more epochs, then stop it as a user would."""
    wanted = child.committed + _EPOCHS_AFTER
    child.wait_until(lambda: child.committed >= wanted, run.timeout_s)
    run.ask_to_stop()


def _ended(run: Round, child: Child, what: str, *, killed: bool) -> Injected:
    """Check that a child ended as it must; one that did not end proves nothing."""
    code = _code(run, child)
    if code is None:
        return Injected(unclear=_not_ended(run, what, child))
    wanted = -signal.SIGKILL if killed else 0
    if code == wanted:
        return Injected()
    if code == -signal.SIGKILL:
        return Injected(unclear=f"{what}: the start was killed by something else: {_OUT_OF_MEMORY}")
    text = f"{what}: the query ended with {code}, not with {wanted}: {_said(child)}"
    return Injected(found=[Violation(ViolationKind.STOPPED, "", text)])


def _code(run: Round, child: Child) -> int | None:
    """How a child ended; None if it did not end by itself, and had to be killed."""
    try:
        code = child.wait(run.timeout_s)
    except TimeoutError:
        return None
    return None if child.timed_out else code


def _not_ended(run: Round, what: str, child: Child) -> str:
    """Return the reason, with what would help to find out."""
    return (
        f"{what}: a start did not end in {run.timeout_s:.0f} s, so the outcome is not known. Raise "
        f"--timeout, or give the machine less to do; its last output: {_said(child) or 'none'}"
    )


def _said(child: Child) -> str:
    return " ".join(child.complaint().split())[-_COMPLAINT_CHARACTERS:]
