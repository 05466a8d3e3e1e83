"""What a worker frees is kept for its next batch, unless the user has said otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Large pieces, made and freed again and again: faults per piece, before and after.
PROGRAM = """
import resource
from beadline.spark.tasks import keep_memory

def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        pieces = [bytes([1]) * (3 << 20) for _ in range(4)]
        del pieces
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 50

first = faults()
told = keep_memory()
faults()
print(told, first, faults())
"""


def run(**environment: str) -> tuple[bool, int, int]:
    inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    told, first, then = done.stdout.split()
    return told == "True", int(first), int(then)


def test_free_memory_is_kept() -> None:
    told, first, then = run()
    assert told == (platform.libc_ver()[0] == "glibc")
    assert not told or then < 10 < first


@pytest.mark.parametrize(
    "setting",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
)
def test_what_a_user_has_set_is_left_alone(setting: dict[str, str]) -> None:
    told, _, _ = run(**setting)
    assert not told
