"""Locks of the operating system: they end with the process that has them.

Between machines they hold only as far as the file system's locks do.
"""

from __future__ import annotations

import errno
import fcntl

from beadline.shared.retry import Retries, Verdict

_PAUSES_S = (0.01,)
_TAKEN = (errno.EAGAIN, errno.EACCES)


def wait_for_lock(descriptor: int, timeout_s: float) -> bool:
    """Take the lock on an open file; False if another process held it all that time."""
    retries = Retries({Verdict.BUSY: timeout_s}, _PAUSES_S)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        else:
            return True
        if not retries.again(Verdict.BUSY):
            return False
