"""A TOML file as tables that know where they stand, so that an error can say it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beadline.errors import NOTHING_WRITTEN, UsageError
from beadline.files import split_uri
from beadline.jobs.environment import Environment
from beadline.jobs.lines import KeyPath, lines_of, parse

_AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")


@dataclass(frozen=True)
class Document:
    """One file: its values, with the environment in them, and the lines of its keys."""

    path: Path
    text: str = field(repr=False)
    environment: Environment = field(default_factory=Environment, repr=False)
    lines: dict[KeyPath, int] = field(default_factory=dict, repr=False)

    @property
    def folder(self) -> Path:
        """Where the file lies; relative paths in it begin here."""
        return self.path.resolve().parent

    def line(self, path: KeyPath) -> int:
        """Return the line of a key, or of the nearest table round it that is written out."""
        known = (path[:length] for length in range(len(path), 0, -1))
        return next((self.lines[each] for each in known if each in self.lines), 1)


@dataclass(frozen=True)
class TomlValue:
    """A value of the file, and the keys that lead to it."""

    document: Document
    path: KeyPath
    value: Any = field(repr=False)

    def __str__(self) -> str:
        """``job.toml:12: queries.sinks.table``, as it would be written in a header."""
        keys = ".".join(_written(key) for key in self.path if isinstance(key, str))
        where = f"{self.document.path}:{self.line}"
        return f"{where}: {keys}" if keys else where

    @property
    def line(self) -> int:
        """The line of the key."""
        return self.document.line(self.path)

    @property
    def key(self) -> str:
        """The last key."""
        return next((key for key in reversed(self.path) if isinstance(key, str)), "")

    def problem(self, what: str) -> UsageError:
        """Return an error that names file, line and key."""
        return UsageError(f"{self}: {sentence(what)} {NOTHING_WRITTEN}")

    def __getitem__(self, key: str | int) -> TomlValue:
        """Return a value below this one, its variables filled in."""
        below = TomlValue(self.document, (*self.path, key), self.value[key])
        if not isinstance(below.value, str):
            return below
        filled = self.document.environment.fill(below.value, below.problem)
        return TomlValue(self.document, below.path, filled)

    def filled(self) -> Any:
        """Return the value with all variables below it filled in; tables know their places."""
        if isinstance(self.value, dict):
            return TomlTable(self, {key: self[key].filled() for key in self.value})
        if isinstance(self.value, list):
            return [each.filled() for each in self]
        return self.value

    def __contains__(self, key: str) -> bool:
        """Whether a table has a key."""
        return key in self.value

    def __iter__(self) -> Iterator[TomlValue]:
        """The entries of a table or of an array."""
        keys = self.value if isinstance(self.value, dict) else range(len(self.value))
        return (self[key] for key in keys)

    def table(self) -> TomlValue:
        """Return this, which must be a table."""
        if not isinstance(self.value, dict):
            raise self.problem(f"must be a table, not {toml_type(self.value)}")
        return self

    def tables(self) -> list[TomlValue]:
        """Return the tables of an array of them."""
        if not isinstance(self.value, list):
            keys = ".".join(_written(key) for key in self.path if isinstance(key, str))
            raise self.problem(f"must be an array of tables: [[{keys}]]")
        return [each.table() for each in self]

    def check_keys(self, known: Iterable[str], required: Iterable[str] = ()) -> None:
        """Refuse unknown keys, and missing ones that are required."""
        known = list(known)
        for key in self.value:
            if key not in known:
                raise self[key].problem(f"there is no such key here.{nearest(key, known)}")
        for key in required:
            if key not in self.value:
                raise self.problem(f"the key {key!r} is missing")

    def resolve(self, path: str, *, uri: bool) -> str:
        """A relative path begins where the job file lies; on a local disk, whatever Spark's is."""
        scheme, _ = split_uri(path)
        if scheme is not None or not path or Path(path).is_absolute():
            return path
        whole = str(self.document.folder / path)
        return f"file:{whole}" if uri else whole


class TomlTable(dict[str, Any]):
    """The values of a table, which knows where it stands."""

    def __init__(self, place: TomlValue, values: dict[str, Any]) -> None:
        """Keep the place beside the values."""
        super().__init__(values)
        self.place = place


def read(path: Path, environment: Environment | None = None) -> TomlValue:
    """Read a file; raises ``UsageError`` with the line if it is not TOML."""
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"job file {path} cannot be read: {error}. {NOTHING_WRITTEN}") from error
    try:
        value = parse(text)
    except ValueError as error:  # the reader's own error is one
        at = _AT.search(str(error))
        line = at[1] if at and at[1] else len(text.splitlines()) or 1
        reason = _AT.sub("", str(error))
        raise UsageError(f"{path}:{line}: this is not TOML: {reason}. {NOTHING_WRITTEN}") from error
    document = Document(path, text, environment or Environment(), lines_of(text))
    return TomlValue(document, (), value)


def sentence(text: str) -> str:
    """End a text as a sentence, if it does not yet."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a sentence with the closest match, or with all of them."""
    folded = {each.casefold(): each for each in known}
    found = difflib.get_close_matches(word.casefold(), folded, 1, 0.6)
    if found:
        return f" Did you mean {folded[found[0]]!r}?"
    return f" It may be: {', '.join(sorted(folded.values()))}." if folded else ""


def toml_type(value: Any) -> str:
    """Return the type of a TOML value in words; the value itself may be a secret."""
    words = {str: "a string", bool: "true or false", int: "a whole number", float: "a number",
             dict: "a table", list: "an array"}  # fmt: skip
    return next((word for kind, word in words.items() if isinstance(value, kind)), "a date or time")


def _written(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'
