"""Records that Kafka has deleted before they were read: Spark's error, with advice that fits.

Spark's own advises ``failOnDataLoss=false``, by which records are passed over without a word, and
which is refused here.
"""

from __future__ import annotations

import re

from beadline.errors import SourceGone

_LOST = re.compile(r"(?i)failOnDataLoss|KAFKA_DATA_LOSS")
_WHY = re.compile(r"Reason: (.+)|\[KAFKA_DATA_LOSS\.\w+\] (.+)|(Partition .+? offset .+)")


def with_advice(error: BaseException | None, query: str) -> BaseException | None:
    """Return Spark's error, or ours in its place if it tells of records that are gone."""
    text = str(error)
    if error is None or not _LOST.search(text):
        return error
    found = _WHY.search(text)
    why = next(filter(None, found.groups()), "") if found else ""
    why = re.split(r"(?i)[^.;]*failOnDataLoss", why)[0].strip().rstrip(".:;")
    return SourceGone(
        f"query {query!r}: Kafka does not have all the records any more that come next: they were "
        "deleted before they were read (by age, by hand, or with their topic)"
        f"{f'; Spark says: {why[:300]}' if why else ''}. Every epoch that is decided is complete, "
        "and nothing was passed over. Restore the records; or, if they are gone and you accept it, "
        "start with a new checkpoint folder and starting= at the first offsets that are there, and "
        "keep records for longer than the query may be down (retention.ms)."
    )
