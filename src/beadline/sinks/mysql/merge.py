"""The statements that take staged rows to the target: append, upsert, add, delete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from beadline.sinks.mysql.columns import folded, quoted
from beadline.sinks.mysql.plan import PART, ROW, Wish

_PLACE = "_beadline_place"


def twice_said(found: Sequence[Any]) -> str:
    """What to say of a key that is there twice, given with its count at the end."""
    key = ", ".join(repr(value) for value in found[:-1])
    return (
        f"key ({key}) is there {found[-1]} times in one epoch, and nothing says which row counts: "
        "give order_by="
    )


def twice_query(stages: Sequence[str], key: Sequence[str]) -> str:
    """A query that finds one key that these staging tables hold twice, with its count.

    The server compares, as the key's collation does: 'a' and 'A' may be the same key.
    """
    names = ", ".join(map(quoted, key))
    union = " UNION ALL ".join(f"SELECT {names} FROM {quoted(stage)}" for stage in stages)
    return (
        f"SELECT {names}, COUNT(*) FROM ({union}) AS every_row GROUP BY {names} "
        "HAVING COUNT(*) > 1 LIMIT 1"
    )


@dataclass(frozen=True)
class Merge:
    """The statements for one wish; ``written`` are the columns that the target gets."""

    wish: Wish
    written: tuple[str, ...]

    def statements(self, stages: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """What to run, in this order, each with the staging tables that it reads."""
        if self.wish.order_by:
            return [(each, tuple(stages)) for each in self._of(self._winners(stages))]
        return [(each, (stage,)) for stage in stages for each in self._of(quoted(stage))]

    def probes(self) -> list[str]:
        """The same statements on no rows at all: whether they may be run here."""
        names = {folded(name): name for name in (*self.written, self.wish.deleted or "")}
        nothing = ", ".join(f"NULL AS {quoted(name)}" for name in names.values() if name)
        return self._of(f"(SELECT {nothing} FROM DUAL WHERE FALSE)")

    def _of(self, source: str) -> list[str]:
        if self.wish.deleted is None:
            return [self._insert(source, "")]
        mark = f"s.{quoted(self.wish.deleted)}"
        return [self._delete(source, mark), self._insert(source, f" WHERE NOT {mark}")]

    def _delete(self, source: str, mark: str) -> str:
        names = map(quoted, self.wish.key)
        same = " AND ".join(f"t.{name} = s.{name}" for name in names)
        return f"DELETE t FROM {self._target} AS t JOIN {source} AS s ON {same} WHERE {mark}"

    def _insert(self, source: str, where: str) -> str:
        columns = ", ".join(map(quoted, self.written))
        insert = f"INSERT INTO {self._target} ({columns})"
        if self.wish.mode == "add":
            keys = ", ".join(f"s.{quoted(name)}" for name in self.written if self._is_key(name))
            chosen = ", ".join(
                f"s.{quoted(name)}" if self._is_key(name) else f"SUM(s.{quoted(name)})"
                for name in self.written
            )
            rows = f"SELECT {chosen} FROM {source} AS s GROUP BY {keys}"
        else:
            chosen = ", ".join(f"s.{quoted(name)}" for name in self.written)
            rows = f"SELECT {chosen} FROM {source} AS s{where}"
        return f"{insert} {rows}{self._on_duplicate()}"

    def _on_duplicate(self) -> str:
        if self.wish.mode == "append":
            return ""
        changed = [name for name in self.written if not self._is_key(name)]
        # With nothing but the key, a row that is there stays as it is.
        changes = [self._change(quoted(name)) for name in changed] or [
            f"{self._target}.{quoted(self.written[0])} = {self._target}.{quoted(self.written[0])}"
        ]
        return f" ON DUPLICATE KEY UPDATE {', '.join(changes)}"

    def _change(self, name: str) -> str:
        mine, new = f"{self._target}.{name}", f"VALUES({name})"
        if self.wish.mode == "upsert":
            return f"{mine} = {new}"
        # A sum with null is null, which would wipe out the total: then the one that is there.
        return f"{mine} = COALESCE({mine} + {new}, {mine}, {new})"

    def _winners(self, stages: Sequence[str]) -> str:
        """Of each key the row with the largest order; of equals the last, by part and place."""
        wanted = list(self.written)
        for name in (self.wish.order_by, self.wish.deleted):
            if name and folded(name) not in map(folded, wanted):
                wanted.append(name)
        columns = ", ".join(map(quoted, wanted))
        union = " UNION ALL ".join(
            f"SELECT {columns}, {quoted(ROW)}, {number} AS {PART} FROM {quoted(stage)}"
            for number, stage in enumerate(stages)
        )
        keys = ", ".join(map(quoted, self.wish.key))
        order = f"{quoted(self.wish.order_by or '')} DESC, {PART} DESC, {quoted(ROW)} DESC"
        ranked = (
            f"SELECT {columns}, ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY {order}) "
            f"AS {_PLACE} FROM ({union}) AS every_row"
        )
        return f"(SELECT {columns} FROM ({ranked}) AS ranked WHERE {_PLACE} = 1)"

    def _is_key(self, name: str) -> bool:
        return folded(name) in map(folded, self.wish.key)

    @property
    def _target(self) -> str:
        return quoted(self.wish.table)
