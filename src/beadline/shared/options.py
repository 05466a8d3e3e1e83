"""Options as Java and librdkafka read them."""

from __future__ import annotations


def option_text(value: object) -> str:
    """Return the text of an option's value; Java writes booleans in lower case.

    >>> option_text(True), option_text(5)
    ('true', '5')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)
