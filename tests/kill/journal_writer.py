"""A process that takes numbers from its sender, journals them, and acknowledges what is durable.

``python -m tests.kill.journal_writer FOLDER FIRST LAST``: each line on stdout is the newest number
that the sender may forget. Old segments are given up as a query does once their epoch is committed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from beadline.sources.journal.log import Journal

SEGMENT_BYTES = 100  # a few values
AT_ONCE = 2


def main(folder: str, first: str, last: str) -> None:
    journal = Journal(Path(folder), SEGMENT_BYTES)
    kept = 0
    for number in range(int(first), int(last), AT_ONCE):
        for value in range(number, min(number + AT_ONCE, int(last))):
            journal.append(b"%d" % value)
        ended = journal.sync()
        print(min(number + AT_ONCE, int(last)) - 1, flush=True)
        if number >= int(last) // 2:  # what came in the first half is used up
            journal.forget(kept)
        else:
            kept = ended
    journal.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
