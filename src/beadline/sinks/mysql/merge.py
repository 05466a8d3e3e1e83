"""The statements that take staged rows to the target: append, upsert, add, delete.

The same key twice in an epoch is settled by ``order_by``, or is an error: never by chance. Within a
part that is found while nothing is decided; across parts only when all are there, at commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from beadline.sinks.mysql.columns import folded, quoted
from beadline.sinks.mysql.plan import PLACE, Wish


def twice_said(wish: Wish) -> str:
    """What to say of a key that nothing settles; not which, values of rows are not for a log."""
    times = f"a key ({', '.join(wish.key)}) is there twice in one epoch"
    if wish.order_by is None:
        return f"{times}, and nothing says which row counts: give order_by="
    return (
        f"{times} with the same {wish.order_by!r}, so nothing says which row counts: give an "
        "order_by= in which no two rows of a key are the same"
    )


def twice_query(stages: Sequence[str], wish: Wish) -> str:
    """A query that finds one key of which these staging tables hold two rows that may both count.

    The server compares, as the key's collation does: 'a' and 'A' may be the same key.
    """
    names = ", ".join(map(quoted, wish.key))
    rows = f"({_union(stages, wish.key)}) AS every_row"
    if wish.order_by is not None:
        first = _first("RANK", stages, wish.key, wish)
        rows = f"{first} AS first_rows"
    return f"SELECT 1 FROM {rows} GROUP BY {names} HAVING COUNT(*) > 1 LIMIT 1"


def _union(stages: Sequence[str], columns: Sequence[str]) -> str:
    names = ", ".join(map(quoted, columns))
    return " UNION ALL ".join(f"SELECT {names} FROM {quoted(stage)}" for stage in stages)


def _first(place: str, stages: Sequence[str], columns: Sequence[str], wish: Wish) -> str:
    """Of each key the row with the largest order; ``RANK`` leaves equals, ``ROW_NUMBER`` one."""
    order = wish.order_by or ""
    staged = [*columns] if folded(order) in map(folded, columns) else [*columns, order]
    names, keys = ", ".join(map(quoted, columns)), ", ".join(map(quoted, wish.key))
    window = f"PARTITION BY {keys} ORDER BY {quoted(order)} DESC"
    ranked = (
        f"SELECT {names}, {place}() OVER ({window}) AS {PLACE} "
        f"FROM ({_union(stages, staged)}) AS every_row"
    )
    return f"(SELECT {names} FROM ({ranked}) AS ranked WHERE {PLACE} = 1)"


@dataclass(frozen=True)
class Merge:
    """The statements for one wish; ``written`` are the columns that the target gets.

    ``never_null`` are, folded, those in which the target takes no null.
    """

    wish: Wish
    written: tuple[str, ...]
    never_null: frozenset[str] = frozenset()

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
                f"s.{quoted(name)}" if self._is_key(name) else self._sum(name)
                for name in self.written
            )
            rows = f"SELECT {chosen} FROM {source} AS s GROUP BY {keys}"
        else:
            chosen = ", ".join(f"s.{quoted(name)}" for name in self.written)
            rows = f"SELECT {chosen} FROM {source} AS s{where}"
        return f"{insert} {rows}{self._on_duplicate()}"

    def _sum(self, name: str) -> str:
        total = f"SUM(s.{quoted(name)})"
        # Nulls add nothing, also where the table takes none.
        return f"COALESCE({total}, 0)" if folded(name) in self.never_null else total

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
        """No two rows of a key are equal in the order: that was looked for before."""
        wanted = list(self.written)
        if self.wish.deleted:
            wanted.append(self.wish.deleted)
        return _first("ROW_NUMBER", stages, wanted, self.wish)

    def _is_key(self, name: str) -> bool:
        return folded(name) in map(folded, self.wish.key)

    @property
    def _target(self) -> str:
        return quoted(self.wish.table)
