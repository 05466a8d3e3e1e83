"""Which column goes to which cell, and everything about that which can be refused at the start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from beadline.sink import NOTHING_WRITTEN, BadSink, Rejected
from beadline.sinks.hbase.client import HBaseClient, no_table
from beadline.sinks.hbase.encode import Encoding
from beadline.sinks.shared.column_text import has_text

if TYPE_CHECKING:
    import pyarrow as pa

TABLE = re.compile(r"([A-Za-z0-9_]+:)?[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True)
class Cells:
    """Where a row goes in HBase: its key, its cells, and what marks it as deleted."""

    row_key: str
    targets: Mapping[str, bytes]  # column → family:qualifier
    deleted: str | None
    encoding: Encoding

    @property
    def families(self) -> list[str]:
        """The column families that are written, each once."""
        return sorted({target.partition(b":")[0].decode() for target in self.targets.values()})

    @property
    def settings(self) -> dict[str, str | None]:
        """What determines the bytes that are written; not the table, which a claim remembers."""
        columns = {f"columns[{name!r}]": cell.decode() for name, cell in self.targets.items()}
        return {
            **columns,
            "row_key": self.row_key,
            "deleted": self.deleted,
            "encoding": self.encoding,
        }

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are needed, each once."""
        names = (self.row_key, *self.targets, *((self.deleted,) if self.deleted else ()))
        return tuple(dict.fromkeys(names))


def split_target(column: str, target: str, where: str) -> bytes:
    """Return ``family:qualifier`` as HBase takes it, or raise with what is wrong with it."""
    family, colon, qualifier = target.partition(":")
    if not colon or not family or not qualifier:
        raise BadSink(
            f"{where}: columns maps {column!r} to {target!r}, which is not 'family:qualifier' with "
            f"both given. {NOTHING_WRITTEN}"
        )
    return target.encode()


def cells_of(
    names: list[str],
    row_key: str,
    family: str | None,
    columns: Mapping[str, str] | None,
    deleted: str | None,
    encoding: Encoding,
    where: str,
) -> Cells:
    """Return where each of these columns goes: ``columns`` as it says, or all into one family."""
    if columns is not None:
        targets = {name: split_target(name, target, where) for name, target in columns.items()}
    else:
        rest = [name for name in names if name not in (row_key, deleted)]
        targets = {name: split_target(name, f"{family}:{name}", where) for name in rest}
    return Cells(row_key, targets, deleted, encoding)


def check_columns(schema: pa.Schema, cells: Cells, where: str) -> None:
    """Raise with the first column that is missing, doubled, or of a type without a form."""
    import pyarrow as pa

    for name in cells.columns:
        count = schema.names.count(name)
        if count != 1:
            found = f"has {count} columns of that name" if count else "has no such column"
            raise BadSink(
                f"{where}: column {name!r} is required, but the row {found}; its columns are "
                f"{', '.join(schema.names)}. {NOTHING_WRITTEN}"
            )
        type_ = schema.field(name).type
        if name == cells.deleted and not pa.types.is_boolean(type_):
            raise BadSink(
                f"{where}: deleted={name!r} is {type_}; it must be boolean: true deletes the row. "
                f"{NOTHING_WRITTEN}"
            )
        if not has_text(type_):
            raise BadSink(
                f"{where}: column {name!r} is {type_}, which has no form in HBase. Take "
                f"it apart or cast it in rows=, to_json() for example. {NOTHING_WRITTEN}"
            )
    if not cells.targets:
        raise BadSink(
            f"{where}: the rows have no column besides the row key, and HBase has no row without a "
            f"cell. Map the key to a cell too, columns={{{cells.row_key!r}: 'f:key'}} for "
            f"example. {NOTHING_WRITTEN}"
        )
    doubled = [t.decode() for t in set(cells.targets.values()) if _count(cells, t) > 1]
    if doubled:
        raise BadSink(
            f"{where}: two columns go to one cell, {', '.join(doubled)}. {NOTHING_WRITTEN}"
        )


def _count(cells: Cells, target: bytes) -> int:
    return list(cells.targets.values()).count(target)


def check_table(client: HBaseClient, table: str, cells: Cells, where: str) -> None:
    """Raise unless the table is there, with these families, and enabled."""
    families = ", ".join(f"'{name}'" for name in cells.families)
    try:
        found = client.families(table)
    except Rejected as error:
        if not no_table(error):
            raise
        raise BadSink(
            f"{where} does not exist. Make it in the HBase shell: create '{table}', {families}. "
            f"{NOTHING_WRITTEN}"
        ) from error
    missing = [name for name in cells.families if name not in found]
    if missing:
        adds = ", ".join(f"'{name}'" for name in missing)
        raise BadSink(
            f"{where} has no column family {adds}; it has {', '.join(sorted(found))}. Name another "
            f"in family= or columns=, or add it in the HBase shell: alter '{table}', {adds}. "
            f"{NOTHING_WRITTEN}"
        )
    if not client.is_enabled(table):
        raise BadSink(
            f"{where} is disabled. In the HBase shell: enable '{table}'. {NOTHING_WRITTEN}"
        )
