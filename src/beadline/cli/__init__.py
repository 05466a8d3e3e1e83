"""The command line. Nothing else in Beadline imports it: it is just another user of the library."""

from __future__ import annotations

import sys

from beadline.cli.output import output
from beadline.errors import BeadlineError


def main() -> None:
    """Run `beadline` and exit with its exit code.

    0 fine, 1 failed, 2 usage, 3 guarantee refused, 4 fenced, 5 inconclusive (verify).

    For an error that Beadline raises on purpose, only the message is printed, which says what to
    do. An unexpected error prints its traceback, and Python then exits with 1.
    """
    from beadline.cli.app import app

    try:
        app()
    except BeadlineError as error:
        output("--json" in sys.argv[1:]).fail(error)
        sys.exit(error.exit_code)
