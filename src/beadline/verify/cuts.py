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

# The watermark with which an epoch ran, and the end of each of its sources, in Spark's words.
Cut = tuple[int | str, ...]


class Known(NamedTuple):
    """How far a run is, in epochs of the undisturbed one; None where none ended like that.

    All of ``settled`` shows, because another epoch was begun after it; nothing shows behind
    ``decided``. ``alike`` says that it came so far by epochs like those of the undisturbed run.
    """

    settled: int | None
    decided: int | None
    alike: bool = True


def cut_of(checkpoint: Path, epoch: int) -> Cut | None:
    """Return where an epoch ends, or None if Spark does not know it, or not any more."""
    try:
        text = (checkpoint / "offsets" / str(epoch)).read_text("utf-8")
        version, metadata, *ends = text.split("\n")
        return (version, int(json.loads(metadata).get("batchWatermarkMs", 0)), *ends)
    except (FileNotFoundError, ValueError, AttributeError):
        return None


def epochs_by_cut(cuts: Mapping[int, Cut | None]) -> dict[Cut, int]:
    """Return which epoch of the undisturbed run ended where, unless several did."""
    times = Counter(cuts.values())
    return {cut: epoch for epoch, cut in cuts.items() if cut is not None and times[cut] == 1}


def known(undisturbed: Mapping[Cut, int], checkpoint: Path, decided: int) -> Known:
    """Return how far a run is that has decided this epoch."""
    settled = _same(undisturbed, checkpoint, decided - 1)
    newest = _same(undisturbed, checkpoint, decided)
    return Known(settled, newest, alike=newest == max(decided, -1))


def _same(undisturbed: Mapping[Cut, int], checkpoint: Path, epoch: int) -> int | None:
    if epoch < 0:
        return -1
    cut = cut_of(checkpoint, epoch)
    return None if cut is None else undisturbed.get(cut)
