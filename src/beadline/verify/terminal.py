"""What a process wrote for a terminal, as text that can stand in a report.

Spark draws progress bars over each other with carriage returns, and tools colour their words. In a
log, a JSON document or a page that is noise.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\-_])")
# [Stage 3:=====>          (5 + 2) / 8], with the next one behind it; cut short, if it was cut off.
_BAR = re.compile(r"\[Stage \d+:[^\]\n\r]*(\]|$)", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]+")


def without_control_codes(text: str) -> str:
    r"""Return the text without colours, progress bars and control characters, but for line ends.

    >>> without_control_codes("[Stage 0:>   (0 + 2) / 2]\r\x1b[31mno such table\x1b[0m")
    'no such table'
    """
    text = _BAR.sub("", _ESCAPE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    lines = (_CONTROL.sub(" ", line).rstrip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)
