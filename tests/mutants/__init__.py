"""One-line mistakes that the cheap tests must see (``make mutants``).

A test that passes says little if it passes on a mistake as well. ``catalogue.toml`` keeps mistakes
that would lose, double or block rows, each with the cheapest tests that should notice; ``__main__``
makes them, one at a time, in a copy of the tree. Whoever closes a hole in the proofs adds it there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CATALOGUE = Path(__file__).with_name("catalogue.toml")


@dataclass(frozen=True)
class Mutant:
    """One mistake in one file below ``src/beadline``, and the tests below ``tests`` that see it."""

    why: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def path(self) -> str:
        """The file, from the root of the tree."""
        return f"src/beadline/{self.file}"

    def made_in(self, code: str) -> str:
        """Return the code with the mistake; its place must be beyond doubt."""
        found = code.count(self.old)
        if found != 1:
            raise LookupError(f"{self.path}: {self.old!r} occurs {found} times, not once")
        return code.replace(self.old, self.new)


def catalogue() -> list[Mutant]:
    """Return the kept list."""
    entries = tomllib.loads(CATALOGUE.read_text("utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
