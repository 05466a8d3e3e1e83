"""One cell: a job that is fed, killed twice, started again, and compared with what was sent."""

from __future__ import annotations

import json
import random
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from beadline.sink import Guarantee
from beadline.verify.child import Child, Children
from beadline.verify.plan import GROUP, Kill
from tests.harness.matrix import jobs
from tests.harness.matrix.cells import Cell, Result, count
from tests.harness.matrix.feeds import FEEDS, Feed

# Where a kill shows most of what a function is: around the decision, and after rows are shown.
POINTS = {
    "exactly_once": ("prepare.after", "decide.before", "decide.after", "commit.after"),
    "at_least_once": ("epoch.return", "epoch.begin"),
}
_LAST = "epoch.return"  # rows are shown, and Spark does not know: tried in every cell
_EPOCHS_BEFORE = 3
_QUIET_S = 3.0
_SETTLE_TIMEOUT_S = 90.0


def run_cell(cell: Cell, servers: dict[str, Any], seed: int) -> Result:
    """Run one cell; whatever happens, nothing is left running."""
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="beadline-matrix-"))
    temporary = Path(tempfile.mkdtemp(prefix="beadline-"))
    tag = secrets.token_hex(4)
    feed = FEEDS[cell.source](folder, servers, tag)
    points = _points(cell, seed)
    run = _Run(cell, servers, folder, temporary, tag, feed, points)
    try:
        result = run.through(seed)
    except Exception as error:  # noqa: BLE001 (a cell that fails is a result, not the end)
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        result = Result(cell, run.promised, seed, tuple(points), feed.sent, 0, 0, 0.0, 0, problem)
    finally:
        run.end()
        feed.close()
        for each in (folder, temporary):
            shutil.rmtree(each, ignore_errors=True)
    return Result(**{**vars(result), "seconds": round(time.monotonic() - began_s, 1)})


def _points(cell: Cell, seed: int) -> list[str]:
    """Where it dies: at a point by the seed, and, in every cell, when rows have just been shown."""
    chosen = random.Random(f"{seed} {cell}").choice(POINTS[cell.function])
    return [chosen, _LAST]


class _Run:
    def __init__(
        self,
        cell: Cell,
        servers: dict[str, Any],
        folder: Path,
        temporary: Path,
        tag: str,
        feed: Feed,
        points: list[str],
    ) -> None:
        self.cell = cell
        self.folder = folder
        self.feed = feed
        self.points = points
        self.promised = Guarantee.EXACTLY_ONCE
        self._servers = servers
        self._tag = tag
        self._children = Children(
            "tests.harness.matrix.driver", folder, temporary, expected=len(points) + 1
        )
        self._target: dict[str, Any] = {}

    def through(self, seed: int) -> Result:
        """Feed, kill at each point, let it come through, and compare."""
        cell = self.cell
        self._target = jobs.settings_of(cell.sink, self._servers, self.folder, self._tag)
        found = {"from": self.feed.start(), "to": self._target, "name": f"cell-{self._tag}"}
        description = {"source": cell.source, "sink": cell.sink, "function": cell.function, **found}
        (self.folder / "cell.json").write_text(json.dumps(description), "utf-8")
        for point in self.points:
            self._kill_at(point)
        last = self._children.start(str(self.folder))
        if not last.wait_until(lambda: last.committed >= _EPOCHS_BEFORE):
            raise RuntimeError(f"the last start failed, or did nothing: {last.complaint()}")
        self.feed.stop()
        shown = self._settled(last)
        (self.folder / "stop").touch()
        if last.wait() != 0:
            raise RuntimeError(f"the last start failed: {last.complaint()}")
        if cell.source == "rate":  # it counts on until it is stopped
            shown = self._shown()
        delivered = list(self.feed.delivered(shown))
        lost, twice = count(shown, delivered)
        window = max(0, self.feed.sent - len(delivered))
        return Result(
            cell, self.promised, seed, tuple(self.points), len(delivered), lost, twice, 0.0, window
        )

    def _kill_at(self, point: str) -> None:
        """Let a start commit some epochs, and die at a point of the next, with its whole group."""
        mark = self._children.mark()
        order = Kill(point, _EPOCHS_BEFORE, GROUP).order(mark)
        child = self._children.start(str(self.folder), order=order)
        child.wait()
        if not mark.exists():
            raise RuntimeError(f"it did not die at {point}: {child.complaint()}")
        promised = [line["level"] for line in child.events if line["kind"] == "promised"]
        self.promised = Guarantee.parse(promised[0])
        child.end()

    def _shown(self) -> list[int]:
        return list(jobs.shown(self.cell.sink, self._target))

    def _settled(self, child: Child) -> list[int]:
        """Wait until everything that was delivered shows, or nothing new has come for a while."""
        deadline_s = time.monotonic() + _SETTLE_TIMEOUT_S
        shown, since_s = self._shown(), time.monotonic()
        while time.monotonic() < deadline_s:
            if self.cell.source == "rate":
                return shown
            time.sleep(0.3)
            now = self._shown()
            if len(now) != len(shown):
                shown, since_s = now, time.monotonic()
            elif time.monotonic() - since_s > _QUIET_S and child.committed:
                return shown
        return shown

    def end(self) -> None:
        """End every process."""
        self._children.end()
