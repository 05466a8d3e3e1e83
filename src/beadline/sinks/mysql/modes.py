"""The SQL of the modes: what an epoch's staged rows do to the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from beadline.sinks.mysql.columns import MYSQL, quoted
from beadline.sinks.shared.sql.modes import added, largest, summed
from beadline.sinks.shared.sql.settings import TableSettings


@dataclass(frozen=True)
class Merge:
    """The statements of one sink; ``written`` are the columns that the table gets.

    ``never_null`` are, folded, those in which the table takes no null.
    """

    settings: TableSettings
    written: tuple[str, ...]
    never_null: frozenset[str] = frozenset()

    def statements(self, stages: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """What to run, in this order, each with the staging tables that it reads."""
        places = list(map(quoted, stages))
        if self.settings.order_by:
            wanted = [*self.written, *([self.settings.deleted] if self.settings.deleted else ())]
            # No two rows of a key are equal in the order: that was looked for before.
            rows = f"({largest(self.settings, 'ROW_NUMBER', places, wanted)})"
            return [(each, tuple(stages)) for each in self._of(rows)]
        return [
            (each, (stage,))
            for stage, place in zip(stages, places, strict=True)
            for each in self._of(place)
        ]

    def probes(self) -> list[str]:
        """The same statements on no rows at all: whether they may be run here."""
        names = {MYSQL.fold(name): name for name in (*self.written, self.settings.deleted or "")}
        nothing = ", ".join(f"NULL AS {quoted(name)}" for name in names.values() if name)
        return self._of(f"(SELECT {nothing} FROM DUAL WHERE FALSE)")

    def _of(self, source: str) -> list[str]:
        if self.settings.deleted is None:
            return [self._insert(source, "")]
        mark = f"s.{quoted(self.settings.deleted)}"
        return [self._delete(source, mark), self._insert(source, f" WHERE NOT {mark}")]

    def _delete(self, source: str, mark: str) -> str:
        names = map(quoted, self.settings.key)
        same = " AND ".join(f"t.{name} = s.{name}" for name in names)
        return f"DELETE t FROM {self._target} AS t JOIN {source} AS s ON {same} WHERE {mark}"

    def _insert(self, source: str, where: str) -> str:
        is_key, fold = self.settings.is_key, MYSQL.fold
        staged = {name: f"s.{quoted(name)}" for name in self.written}
        group = ""
        if self.settings.mode == "add":
            group = f" GROUP BY {', '.join(staged[name] for name in self.written if is_key(name))}"
            staged |= {
                name: summed(staged[name], not_null=fold(name) in self.never_null)
                for name in self.written
                if not is_key(name)
            }
        return (
            f"INSERT INTO {self._target} ({MYSQL.listed(self.written)}) "
            f"SELECT {', '.join(staged.values())} FROM {source} AS s{where}{group}"
            f"{self._on_duplicate()}"
        )

    def _on_duplicate(self) -> str:
        if self.settings.mode == "append":
            return ""
        changed = [name for name in self.written if not self.settings.is_key(name)]
        # With nothing but the key, a row that is there stays as it is.
        changes = [self._change(quoted(name)) for name in changed] or [
            f"{self._target}.{quoted(self.written[0])} = {self._target}.{quoted(self.written[0])}"
        ]
        return f" ON DUPLICATE KEY UPDATE {', '.join(changes)}"

    def _change(self, name: str) -> str:
        there, new = f"{self._target}.{name}", f"VALUES({name})"
        return f"{there} = {new if self.settings.mode == 'upsert' else added(there, new)}"

    @property
    def _target(self) -> str:
        return quoted(self.settings.table)
