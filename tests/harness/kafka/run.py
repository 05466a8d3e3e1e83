"""One run from Kafka to Kafka: children that are killed, a feeder and a watcher that are not.

A child that survives its kill, because only a Python worker or a broker died, is killed again: a
start costs seconds, most of them the JVM's. Where a child dies is told to it while it runs, by a
file. Between two kills a reader must have seen new records, and soon: an open transaction that
nobody aborts holds every reader up. Everything that was started is ended, by its id.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beadline.demo.supervisor import RunFailed
from beadline.points import CrashOrder
from beadline.verify import processes
from beadline.verify.child import CHILD_TIMEOUT_S, Child, Children, kill_at_random
from beadline.verify.plan import MOMENT, ONCE, Kill
from tests.harness.kafka.check import KafkaTally, check, open_transactions
from tests.harness.kafka.feed import Feeder
from tests.harness.kafka.watch import Watcher
from tests.harness.kafka.workload import SOURCE_PARTITIONS, TARGET_PARTITIONS, KafkaWorkload
from tests.harness.points import BrokerKill
from tests.slowness import patient

if TYPE_CHECKING:
    from beadline.testing.servers import KafkaCluster

_POINT_TIMEOUT_S = patient(90.0)
_NEWS_TIMEOUT_S = patient(90.0)
_BROKER_DOWN_MAX_S = 5.0
_EPOCH_S = 0.5
_START_S = 10.0
_FAILURES_MAX = 3  # for each broker that was killed
_COMPLAINT_CHARACTERS = 1500
Say = Callable[[str], None]


class KafkaRun:
    """A job on a cluster, and what is done to it."""

    def __init__(
        self,
        cluster: KafkaCluster,
        workload: KafkaWorkload,
        say: Say = lambda line: None,
        expected: int = 1,
    ) -> None:
        """``expected`` are the starts of the job, of which each is made ready ahead."""
        self.cluster = cluster
        self.workload = workload
        self.kills = 0
        self.failures: list[str] = []  # of children that a dead broker was too much for
        self.held_up_s: list[float] = []
        self._say = say
        self._orders = 0
        self._brokers_killed = 0
        self._rng = random.Random(f"{workload.seed} run")
        self._began_s = time.monotonic()
        self._temporary = Path(tempfile.mkdtemp(prefix="beadline-"))
        module = "tests.harness.kafka.driver"
        self._starts = Children(module, workload.scratch, self._temporary, expected=expected)
        self.children = self._starts.started
        self.feeder = Feeder(workload.servers, workload.source, workload.seed)
        self.watcher = Watcher(workload.servers, workload.target, range(TARGET_PARTITIONS))

    def __enter__(self) -> KafkaRun:
        self.cluster.create_topic(self.workload.source, SOURCE_PARTITIONS)
        self.cluster.create_topic(self.workload.target, TARGET_PARTITIONS)
        self.workload.save()
        self.feeder.start()
        self.watcher.start()
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self.feeder.stop()
            self.watcher.stop()
        finally:
            self._starts.end()
            shutil.rmtree(self._temporary, ignore_errors=True)

    def start(self) -> Child:
        """Start a child, whether or not there is one."""
        variables = {"BEADLINE_CRASH_FILE": str(self.workload.order)}
        return self._starts.start(str(self.workload.folder), environment=variables)

    def running(self) -> Child:
        """Return the child that lives, started now if there is none."""
        if self.children and self.children[-1].alive:
            return self.children[-1]
        return self.start()

    def arm(self, point: str, occurrence: int = 1, scope: str = "process") -> Path:
        """Tell the processes that reach a point what to do; return the mark that one makes."""
        self._orders += 1
        mark = self.workload.scratch / f"order-{self._orders:03d}"
        hidden = self.workload.order.with_suffix(".new")
        hidden.write_text(CrashOrder(point, occurrence, scope, str(mark)).to_text(), "utf-8")
        hidden.rename(self.workload.order)
        return mark

    def disarm(self) -> None:
        """No process is to die any more."""
        self.workload.order.unlink(missing_ok=True)

    def kill(self, kill: Kill) -> int:
        """Kill a process; return how many kills hit."""
        self.check_seen()
        before = self.kills
        if kill.point in ONCE and self.children and self.children[-1].alive:
            self.kill_now()  # it is past that point, so it makes way for one that is not
        if kill.point == "kafka.proof":
            self.wait_for_expiry()
        if isinstance(kill, BrokerKill) and kill.point != MOMENT:
            self._kill_broker_at(kill)
        elif isinstance(kill, BrokerKill):
            self._kill_broker()
        elif kill.point == MOMENT:
            self._kill_from_outside(kill)
        else:
            self._kill_at_point(kill)
        hits = self.kills - before
        self._say(f"{time.monotonic() - self._began_s:6.1f} s  {kill}: {hits} killed")
        return hits

    def kill_now(self) -> None:
        """Kill the running child and its JVM."""
        child = self.children[-1]
        self.kills += processes.kill_group(child.pid)
        child.wait(CHILD_TIMEOUT_S)

    def _kill_at_point(self, kill: Kill) -> None:
        mark = self.arm(kill.point, kill.occurrence, kill.scope)
        child = self.running()
        self.wait_until(lambda: mark.exists() or not child.alive, _POINT_TIMEOUT_S)
        self.disarm()
        self.kills += mark.exists()
        if kill.survived or not mark.exists():
            self.expect_news()
            return
        self._expect_killed(child, kill)

    def _kill_from_outside(self, kill: Kill) -> None:
        child = self.running()
        hits = kill_at_random(child, kill.scope, self._rng)
        self.kills += hits
        if kill.survived:
            self.expect_news()
        elif hits:
            self._expect_killed(child, kill)

    def _expect_killed(self, child: Child, kill: Kill) -> None:
        code = child.wait(CHILD_TIMEOUT_S)
        if code != -signal.SIGKILL:
            raise RunFailed(f"{kill}: the child ended with {code}\n{child.complaint()}")

    def _kill_broker(self) -> None:
        """Kill -9 one broker, at a moment; bring it back at another, or when two did without it.

        Where no child lives, one is started, and the moment is in its start and recovery.
        """
        if self.children and self.children[-1].alive:
            time.sleep(self._rng.uniform(0, _EPOCH_S))
        else:
            self.start()
            time.sleep(self._rng.uniform(0, _START_S))
        self._do_without(self._kill_one_broker())

    def _kill_broker_at(self, kill: Kill) -> None:
        """Kill -9 one broker while the process that reaches a point pauses there."""
        mark = self.arm(kill.point, kill.occurrence, "pause")
        child = self.running()
        found = self.wait_until(lambda: asleep(mark) > 0 or not child.alive, _POINT_TIMEOUT_S)
        self.disarm()
        sleeper = asleep(mark) if found else 0
        if not sleeper:
            self.expect_news()
            return
        victim = self._kill_one_broker()
        os.kill(sleeper, signal.SIGCONT)
        self._do_without(victim)

    def _kill_one_broker(self) -> Any:
        victim = self._rng.choice(self.cluster.brokers)
        victim.kill()
        self.kills += 1
        self._brokers_killed += 1
        return victim

    def _do_without(self, victim: Any) -> None:
        """Let the job live on, without the broker or until it is back."""
        if self._rng.random() < 0.5:
            self.expect_news()
        else:
            time.sleep(self._rng.uniform(0, _BROKER_DOWN_MAX_S))
        victim.restart()
        self.expect_news()
        self.cluster.wait_ready()

    def expect_news(self) -> None:
        """See that a reader gets records that were produced after the running child's claim.

        A child may have failed over a dead broker; then the next one must do better.
        """
        child = self.running()
        began_s = time.monotonic()
        child.wait_for_events(1, CHILD_TIMEOUT_S)
        wanted = self.feeder.sent + 1
        since_s = time.monotonic()
        if self.watcher.wait_for(wanted, _NEWS_TIMEOUT_S, lambda: child.alive):
            self.held_up_s.append(time.monotonic() - since_s)
            return
        self.check_seen()
        if child.alive:
            raise RunFailed(
                f"for {time.monotonic() - began_s:.0f} s no reader has seen anything new, behind "
                f"{self.open_transactions()}; the child's last events: "
                f"{child.events[-5:]}\n{child.complaint()}"
            )
        self._note_failure(child)
        self.expect_news()

    def _note_failure(self, child: Child) -> None:
        code = child.wait(CHILD_TIMEOUT_S)
        self.failures.append(child.complaint()[-_COMPLAINT_CHARACTERS:])
        if len(self.failures) > self._brokers_killed * _FAILURES_MAX:
            raise RunFailed(f"a child ended with {code}\n{child.complaint()}")

    def wait_for_expiry(self) -> None:
        """Wait until the brokers have aborted what the dead left open."""
        limit_s = self.workload.transaction_timeout_s + 10
        if not self.wait_until(lambda: not self.open_transactions(), limit_s):
            raise RunFailed(f"transactions are open for more than {limit_s} s")

    def open_transactions(self) -> list[str]:
        """The names under which something of this job is open."""
        return open_transactions(self.cluster, self.workload)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait, as long as the watcher has nothing to complain of; whether it came true."""
        deadline_s = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > deadline_s:
                return False
            self.check_seen()
            time.sleep(0.02)
        return True

    def check_seen(self) -> None:
        """Nothing twice, nothing out of order, at any moment."""
        if self.watcher.problems:
            raise RunFailed("a reader saw what it must not:\n" + "\n".join(self.watcher.problems))

    def finish(self) -> KafkaTally:
        """Let everything come through, stop the job as a user would, and compare."""
        self.disarm()
        self.expect_news()
        self.feeder.stop()
        child = self.running()
        self.watcher.wait_for(self.feeder.sent, _NEWS_TIMEOUT_S, lambda: child.alive)
        self.workload.stop.touch()
        code = child.wait(CHILD_TIMEOUT_S)
        if code != 0:
            raise RunFailed(f"the last child ended with {code}\n{child.complaint()}")
        self._say(f"{time.monotonic() - self._began_s:6.1f} s  stopped")
        return check(self.cluster, self.workload, self.watcher.problems)


def asleep(mark: Path) -> int:
    """Who made a mark and stands still by now; 0 if nobody does yet."""
    try:
        pid = int(mark.read_text("utf-8") or 0)
    except FileNotFoundError:
        return 0
    return pid if processes.state(pid) == processes.ASLEEP else 0
