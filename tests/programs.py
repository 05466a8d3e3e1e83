"""Programs of the tests, run in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.slowness import patient

ROOT = Path(__file__).parents[1]
_ERROR_CHARACTERS = 3000


def output_of(module: str, *arguments: object, timeout_s: float = 300) -> str:
    """Run a module to its end, which must be a good one; return what it has printed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(timeout_s),
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-_ERROR_CHARACTERS:]
    return done.stdout
