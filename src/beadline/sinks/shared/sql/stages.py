"""Staging tables that are no longer needed: dropped many at once, or one by one where some stay.

One that is being read, by a dump that runs for hours for example, stays where it is: nothing waits
for that, as no later part has its name, and a later sweep finds it. So does one that this user may
not drop, left by a sink with another user: it holds nothing up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from beadline.sink import Retries, Verdict

logger = logging.getLogger("beadline")

_LOCKED_S = 10.0  # for all that are locked together

WhyKept = Literal["locked", "denied"]


def drop_stages(
    stages: Sequence[str], drop: Callable[[Sequence[str]], WhyKept | None], at_once: int
) -> None:
    """Drop staging tables, those that exist; ``drop`` drops all that it is given, or says why not.

    It is given up to ``at_once`` of them. Where it drops none, each of them is tried alone.
    """
    retries = Retries({Verdict.BUSY: _LOCKED_S}, (0.0,))  # the server waits for each lock
    for first in range(0, len(stages), at_once):
        some = stages[first : first + at_once]
        if len(some) > 1 and drop(some) is None:
            continue
        for one in some:
            why = drop([one])
            if why == "denied":
                logger.warning("staging table %s is left: this user may not drop it", one)
            if why is not None and not retries.again(Verdict.BUSY):
                return
