"""``${NAME}`` and ``${NAME:-default}`` in the strings of a job file: addresses and secrets.

What comes from the environment may be a secret, so it must show in nothing that is said: errors
pass through ``redact``, which puts the variable's name in its value's place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from beadline.shared.secrets import redacted

_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")
# Shorter values are not secrets, and would be found inside other words.
_REDACTED_LENGTH_MIN = 4


class FromEnvironment(str):
    """A string with a variable in it; it may stand for a number."""

    __slots__ = ()


@dataclass
class Environment:
    """The variables, and which of them a job file has used."""

    variables: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    used: dict[str, str] = field(default_factory=dict, repr=False)

    def fill(self, text: str, fail: Callable[[str], Exception]) -> str:
        """Return the text with its variables replaced; ``fail`` makes the error for its place."""

        def value(found: re.Match[str]) -> str:
            if found[0] == "$${":
                return "${"
            name, default = found[1], found[2]
            if name is None:
                raise fail("${ begins a variable such as ${NAME} or ${NAME:-default}; the two "
                           "characters themselves are written $${")  # fmt: skip
            given = self.variables.get(name)
            if given is None and default is None:
                raise fail(
                    f"the environment variable {name} is not set. Set it, or give a default here: "
                    f"${{{name}:-default}}"
                )
            if default is not None and not given:
                return str(default)
            self.used[name] = given or ""
            return given or ""

        filled = _VARIABLE.sub(value, text)
        return FromEnvironment(filled) if _VARIABLE.search(text) else text

    def redact(self, text: str) -> str:
        """Put variables' names in the place of their values, also where those are escaped."""
        hidden = {
            value: f"${{{name}}}"
            for name, value in self.used.items()
            if len(value) >= _REDACTED_LENGTH_MIN
        }
        return redacted(text, hidden)


def plain(value: Any) -> Any:
    """Return what TOML gave, without the mark of the environment."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, FromEnvironment) else value
