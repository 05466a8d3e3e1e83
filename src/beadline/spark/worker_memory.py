"""A worker keeps the memory of one batch for the next.

glibc gives the memory of a batch back to the system when it is free, and every page of the next
batch then is a fault and is filled with zeros before it is filled with rows: with small rows, a
twelfth of a worker's CPU. So more of it is kept, at the end of each of glibc's heaps.
"""

from __future__ import annotations

import os

# The names of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = 64 << 20
_GROWN_BY_BYTES = 4 << 20
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
_LARGE_BYTES = 32 << 20  # what is larger goes back at once; glibc takes no more than this


def keep_memory() -> bool:
    """Tell the C library; whether it was told. Who has set it by environment is left alone."""
    if any(name in os.environ for name in _SET_BY_USER):
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError):  # another C library, or a bare Python
        return False
    told = (
        (_MMAP_THRESHOLD, _LARGE_BYTES),
        (_TRIM_THRESHOLD, _KEPT_BYTES),
        (_TOP_PAD, _GROWN_BY_BYTES),
    )
    return all(mallopt(name, value) == 1 for name, value in told)
