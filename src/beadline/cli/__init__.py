"""The command line. Nothing in Beadline imports it; it is one more user of the library."""

from __future__ import annotations

import sys

from beadline.cli.output import output
from beadline.errors import BeadlineError


def main() -> None:
    """Run `beadline` and exit with a code.

    0 fine, 1 failed, 2 usage, 3 guarantee refused, 4 fenced, 5 inconclusive (verify).

    Errors that Beadline raises on purpose are shown as their message, which says what to do; a
    trace is kept for unexpected ones, and Python's own exit code for them is 1.
    """
    from beadline.cli.app import app

    try:
        app()
    except BeadlineError as error:
        output("--json" in sys.argv[1:]).fail(error)
        sys.exit(error.exit_code)
