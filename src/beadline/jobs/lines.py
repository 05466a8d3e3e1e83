"""Where each key of a TOML text stands: Python's reader returns values without positions."""

from __future__ import annotations

import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Names, and the numbers of tables in an array: ("queries", 0, "sinks", 1, "table").
KeyPath = tuple[str | int, ...]

_KEY = re.compile(r"""[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*""")
_BETWEEN = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?""""{0,2}'
    r"|'''.*?''''{0,2}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_OTHER = re.compile(r"[^,\]}\n#]*")


def parse(text: str) -> dict[str, Any]:
    """Read TOML."""
    return tomllib.loads(text)


def lines_of(text: str) -> dict[KeyPath, int]:
    """Return the line of every key, counted from 1; that of a table is where it first shows.

    The text must be TOML: ``parse`` has seen it before.
    """
    return _Scanner(text).scan()


class _Scanner:
    """One pass over the text; every method is given a position and returns the next."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[KeyPath, int] = {}
        self._last: dict[KeyPath, int] = {}  # of each array of tables, the number of its last one

    def scan(self) -> dict[KeyPath, int]:
        at = self._skip(0)
        table: KeyPath = ()
        while at < len(self._text):
            start = at
            if self._text.startswith("[[", at):
                keys, at = self._dotted(at + 2)
                array = (*self._resolve(keys[:-1]), keys[-1])
                self._last[array] = self._last.get(array, -1) + 1
                self._note(array, start)
                table = (*array, self._last[array])
                at += 2
            elif self._text[at] == "[":
                keys, at = self._dotted(at + 1)
                table = self._resolve(keys)
                at += 1
            else:
                at = self._skip(self._pair(table, at))
                continue
            self._note(table, start)
            at = self._skip(at)
        return self._found

    def _note(self, path: KeyPath, at: int) -> None:
        line = self._text.count("\n", 0, at) + 1
        for length in range(1, len(path) + 1):
            self._found.setdefault(path[:length], line)

    def _skip(self, at: int) -> int:
        found = _BETWEEN.match(self._text, at)
        return at if found is None else found.end()

    def _resolve(self, keys: list[str]) -> KeyPath:
        """A header refers to the last table of each array in its path."""
        path: KeyPath = ()
        for key in keys:
            path = (*path, key)
            if path in self._last:
                path = (*path, self._last[path])
        return path

    def _dotted(self, at: int) -> tuple[list[str], int]:
        keys: list[str] = []
        while True:
            found = _KEY.match(self._text, at)
            assert found is not None, "read by tomllib before"
            keys.append(_unquoted(found[1]))
            at = found.end()
            if self._text[at] != ".":
                return keys, at
            at += 1

    def _pair(self, table: KeyPath, at: int) -> int:
        start = at
        keys, at = self._dotted(at)
        path = (*table, *keys)
        self._note(path, start)
        return self._value(path, self._skip(at + 1))

    def _value(self, path: KeyPath, at: int) -> int:
        if self._text[at] == "[":
            return self._array(path, at + 1)
        if self._text[at] == "{":
            return self._inline(path, at + 1)
        found = _STRING.match(self._text, at) or _OTHER.match(self._text, at)
        assert found is not None
        return found.end()

    def _array(self, path: KeyPath, at: int) -> int:
        number = 0
        while self._text[at := self._skip(at)] != "]":
            self._note((*path, number), at)
            at = self._skip(self._value((*path, number), at))
            at += self._text[at] == ","
            number += 1
        return at + 1

    def _inline(self, path: KeyPath, at: int) -> int:
        while self._text[at := self._skip(at)] != "}":
            at = self._skip(self._pair(path, at))
            at += self._text[at] == ","
        return at + 1


def _unquoted(key: str) -> str:
    if key[0] == "'":
        return key[1:-1]
    if key[0] == '"':
        return next(iter(parse(f"{key} = 0")))
    return key
