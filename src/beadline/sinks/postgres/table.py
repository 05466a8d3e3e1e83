"""What the database says of a table: its columns, its keys, and what may stand in a part's way.

Read in one statement, as JSON, so that it costs one round trip by either client library.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from beadline.sinks.postgres.connect import Run
from beadline.sinks.postgres.names import literal, quoted


@dataclass(frozen=True)
class Column:
    """One column: its declared type, and what that is underneath, domains resolved."""

    name: str
    declared: str
    base: str
    modifier: int
    kind: str
    element: str
    labels: tuple[str, ...]
    not_null: bool
    has_default: bool
    generated: bool
    collation: str

    @property
    def definition(self) -> str:
        """How a staging table declares it: the same type, and null where a part leaves it out."""
        collation = f" COLLATE {self.collation}" if self.collation else ""
        return f"{quoted(self.name)} {self.declared}{collation}"


@dataclass(frozen=True)
class Table:
    """A table, and what of it decides how it can be written."""

    schema: str
    name: str
    kind: str
    persistence: str
    columns: dict[str, Column]
    keys: frozenset[frozenset[str]]
    checks: tuple[tuple[frozenset[str], str], ...]
    in_the_way: tuple[str, ...]
    privileges: dict[str, bool]
    max_prepared: int
    used_prepared: int

    @property
    def target(self) -> str:
        """Its name in the ledger."""
        return quoted(self.schema, self.name)


def read_table(run: Run, schema: str | None, name: str) -> Table | None:
    """Return the table under this name, by the search path if no schema is given; else None."""
    place = quoted(name) if schema is None else quoted(schema, name)
    ((text,),) = run(_DESCRIBE.replace("%PLACE%", literal(place)))
    if text is None:
        return None
    found: dict[str, Any] = json.loads(text)
    columns = {each["name"]: _column(each) for each in found["columns"]}
    return Table(
        schema=found["schema"],
        name=found["name"],
        kind=found["kind"],
        persistence=found["persistence"],
        columns=columns,
        keys=frozenset(frozenset(key) for key in found["keys"]),
        checks=tuple((frozenset(each["columns"]), each["check"]) for each in found["checks"]),
        in_the_way=tuple(found["in_the_way"]),
        privileges=found["privileges"],
        max_prepared=found["max_prepared"],
        used_prepared=found["used_prepared"],
    )


def _column(found: dict[str, Any]) -> Column:
    return Column(**{**found, "labels": tuple(found["labels"])})


_COLUMNS = """
SELECT coalesce(json_agg(json_build_object(
    'name', a.attname, 'declared', format_type(a.atttypid, a.atttypmod),
    'base', b.typname, 'kind', b.typtype,
    'modifier', CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
    'element', coalesce((SELECT e.typname FROM pg_type e
        WHERE e.oid = b.typelem AND b.typcategory = 'A'), ''),
    'labels', coalesce((SELECT json_agg(l.enumlabel) FROM pg_enum l WHERE l.enumtypid = b.oid),
        '[]'::json),
    'not_null', a.attnotnull, 'has_default', a.atthasdef OR a.attidentity <> '',
    'generated', a.attgenerated <> '' OR a.attidentity = 'a',
    'collation', CASE WHEN a.attcollation <> t.typcollation THEN
        (SELECT quote_ident(n.nspname) || '.' || quote_ident(c.collname) FROM pg_collation c
         JOIN pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = a.attcollation)
        ELSE '' END) ORDER BY a.attnum), '[]'::json)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped"""

# Only what ON CONFLICT can use: whole columns, all rows, checked at once.
_KEYS = """
SELECT coalesce(json_agg((SELECT json_agg(a.attname) FROM pg_attribute a
    WHERE a.attrelid = r.oid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))), '[]'::json)
FROM pg_index i WHERE i.indrelid = r.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL"""

_CHECKS = """
SELECT coalesce(json_agg(json_build_object('check', pg_get_constraintdef(c.oid), 'columns',
    (SELECT coalesce(json_agg(a.attname), '[]'::json) FROM pg_attribute a
     WHERE a.attrelid = r.oid AND a.attnum = ANY (c.conkey)))), '[]'::json)
FROM pg_constraint c WHERE c.conrelid = r.oid AND c.contype = 'c' AND c.convalidated"""

# What could make one part wait for another, or a COPY do more than add rows to this table.
_IN_THE_WAY = """
SELECT coalesce(json_agg(why), '[]'::json) FROM (
    SELECT 'index ' || quote_ident(x.relname) || ' is unique or excludes' AS why
    FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
    WHERE i.indrelid = r.oid AND (i.indisunique OR i.indisexclusion)
    UNION ALL SELECT 'constraint ' || quote_ident(conname) || ' is a foreign key'
    FROM pg_constraint WHERE conrelid = r.oid AND contype = 'f'
    UNION ALL SELECT 'trigger ' || quote_ident(tgname)
    FROM pg_trigger WHERE tgrelid = r.oid AND NOT tgisinternal
    UNION ALL SELECT 'the table is partitioned' WHERE r.relkind = 'p'
    UNION ALL SELECT 'the table has rules' WHERE r.relhasrules
    UNION ALL SELECT 'the table has row security' WHERE r.relrowsecurity) found"""

_PRIVILEGES = """
json_build_object('INSERT', has_table_privilege(r.oid, 'INSERT'),
    'SELECT', has_table_privilege(r.oid, 'SELECT'),
    'UPDATE', has_table_privilege(r.oid, 'UPDATE'),
    'DELETE', has_table_privilege(r.oid, 'DELETE'),
    'CREATE', has_schema_privilege(n.oid, 'CREATE'))"""

_DESCRIBE = f"""
SELECT (SELECT json_build_object('schema', n.nspname, 'name', r.relname, 'kind', r.relkind,
    'persistence', r.relpersistence, 'columns', ({_COLUMNS}), 'keys', ({_KEYS}),
    'checks', ({_CHECKS}), 'in_the_way', ({_IN_THE_WAY}), 'privileges', {_PRIVILEGES},
    'max_prepared', current_setting('max_prepared_transactions')::int,
    'used_prepared', (SELECT count(*) FROM pg_prepared_xacts))::text
FROM pg_class r JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE r.oid = to_regclass(%PLACE%))"""
