"""What the kill tests share: drivers of the demo's job, all ended with the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from beadline.demo.supervisor import JOB
from beadline.verify.child import Children


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Children]:
    """Drivers of the demo's job, any number of them at a time."""
    temporary = Path(tempfile.mkdtemp(prefix="beadline-"))  # PySpark's sockets need short paths
    started = Children(JOB, tmp_path, temporary, zombies=10)
    yield started
    started.end()
    shutil.rmtree(temporary, ignore_errors=True)
