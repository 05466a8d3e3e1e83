"""Where epochs end, by what Spark's checkpoint says, so that those of two runs can be compared.

Epochs of the same number need not hold the same rows. Spark's file source notes the files of an
epoch in a log of its own before Spark notes the epoch; a driver that dies, or is stopped, between
the two leaves files behind that the next start gives together with those after them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# The watermark with which an epoch ran, and the end of each of its sources.
Cut = tuple[int | str, ...]


class Known(NamedTuple):
    """How far a run is, in epochs of the undisturbed one.

    All of ``settled`` shows, because another epoch was begun after it; nothing shows behind
    ``decided``.
    """

    settled: int
    decided: int


def cut_of(checkpoint: Path, epoch: int) -> Cut | None:
    """Return where an epoch ends, or None if Spark does not know it, or not any more."""
    try:
        version, metadata, *ends = (checkpoint / "offsets" / str(epoch)).read_text().splitlines()
    except (FileNotFoundError, ValueError):
        return None
    return (version, int(json.loads(metadata).get("batchWatermarkMs", 0)), *ends)


def epochs_by_cut(cuts: Mapping[int, Cut | None]) -> dict[Cut, int]:
    """Return which epoch of the undisturbed run ended where, unless several did."""
    times = Counter(cuts.values())
    return {cut: epoch for epoch, cut in cuts.items() if cut is not None and times[cut] == 1}


def known(undisturbed: Mapping[Cut, int], checkpoint: Path, decided: int) -> Known | None:
    """Return how far a run is that has decided this epoch; None if no epoch ended where it did."""
    settled = _same(undisturbed, checkpoint, decided - 1)
    newest = _same(undisturbed, checkpoint, decided)
    return None if settled is None or newest is None else Known(settled, newest)


def _same(undisturbed: Mapping[Cut, int], checkpoint: Path, epoch: int) -> int | None:
    if epoch < 0:
        return -1
    cut = cut_of(checkpoint, epoch)
    return None if cut is None else undisturbed.get(cut)
