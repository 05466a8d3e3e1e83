"""A worker keeps the memory of one batch for the next.

glibc gives large pieces back to the system as soon as they are free, and every page of the next
batch then is a fault and is filled with zeros before it is filled with rows: with small rows, a
twelfth of a worker's CPU. So free memory is kept, up to a bound.
"""

from __future__ import annotations

import ctypes
import os

# The names of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = 64 << 20
_GROWN_BY_BYTES = 4 << 20
_LARGE_BYTES = 32 << 20  # what is larger goes back at once; glibc takes no more than this


def keep_memory() -> bool:
    """Tell the C library; whether it was told. Who has set it by environment is left alone."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    told = (
        (_MMAP_THRESHOLD, _LARGE_BYTES),
        (_TRIM_THRESHOLD, _KEPT_BYTES),
        (_TOP_PAD, _GROWN_BY_BYTES),
    )
    return all(mallopt(name, value) == 1 for name, value in told)
