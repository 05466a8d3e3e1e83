"""What the database says of a table: its columns, its keys, and what may block a part.

Read in one statement, as JSON, so that it costs one round trip by either client library.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from beadline.sinks.postgres.connect import RunStatement, literal
from beadline.sinks.shared.sql.dialect import quoted

_BASES = {
    "bigint": "int8",
    "integer": "int4",
    "smallint": "int2",
    "double precision": "float8",
    "real": "float4",
    "boolean": "bool",
}


@dataclass(frozen=True)
class PostgresColumn:
    """One column: its declared type, and what that is underneath, domains resolved.

    ``takes_null`` is about the type alone: a domain may refuse nulls wherever it is used.
    ``exact`` says that two of its values are equal only if their bytes are.
    """

    name: str
    declared: str
    base: str
    modifier: int
    kind: str
    element: str
    labels: tuple[str, ...]
    not_null: bool
    takes_null: bool
    has_default: bool
    generated: bool
    collation: str
    exact: bool

    @classmethod
    def of_type(cls, name: str, declared: str) -> PostgresColumn:
        """A column that no table has, of a type as ``declared`` in ``columns`` names it."""
        base = "numeric" if declared.startswith("numeric") else _BASES.get(declared, declared)
        return cls(name, declared, base, -1, "b", "", (), False, True, False, False, "", False)

    @property
    def required(self) -> bool:
        """Whether every row must give a value."""
        return self.not_null and not self.has_default

    @property
    def definition(self) -> str:
        """How a staging table declares it: the same type, and null where a part leaves it out."""
        collation = f" COLLATE {self.collation}" if self.collation else ""
        return f"{quoted(self.name)} {self.declared}{collation}"


@dataclass(frozen=True)
class CheckConstraint:
    """A CHECK constraint, and the columns that it reads."""

    name: str
    condition: str
    columns: frozenset[str]


@dataclass(frozen=True)
class PostgresTable:
    """A table, and what of it decides how it can be written."""

    schema: str
    name: str
    kind: str
    unlogged: tuple[str, ...]
    columns: dict[str, PostgresColumn]
    keys: frozenset[frozenset[str]]
    checks: tuple[CheckConstraint, ...]
    in_the_way: tuple[str, ...]
    privileges: dict[str, bool]
    max_prepared: int
    used_prepared: int

    @property
    def target(self) -> str:
        """Its name in the ledger."""
        return quoted(self.schema, self.name)


def read_table(run: RunStatement, schema: str | None, name: str) -> PostgresTable | None:
    """Return the table under this name, by the search path if no schema is given; else None."""
    place = quoted(name) if schema is None else quoted(schema, name)
    found = _described(run, place, _PLAIN)
    if found is not None and any(each["kind"] == "d" for each in found["columns"]):
        found = _described(run, place, _DOMAINS)
    if found is None:
        return None
    columns = {each["name"]: _column(each) for each in found["columns"]}
    return PostgresTable(
        schema=found["schema"],
        name=found["name"],
        kind=found["kind"],
        unlogged=tuple(found["unlogged"]),
        columns=columns,
        keys=frozenset(frozenset(key) for key in found["keys"]),
        checks=tuple(
            CheckConstraint(each["name"], each["condition"], frozenset(each["columns"]))
            for each in found["checks"]
        ),
        in_the_way=tuple(found["in_the_way"]),
        privileges=found["privileges"],
        max_prepared=found["max_prepared"],
        used_prepared=found["used_prepared"],
    )


def _described(run: RunStatement, place: str, underneath: str) -> dict[str, Any] | None:
    statement = _DESCRIBE.replace("%UNDERNEATH%", underneath).replace("%PLACE%", literal(place))
    ((text,),) = run(statement)
    return None if text is None else json.loads(text)


def _column(found: dict[str, Any]) -> PostgresColumn:
    return PostgresColumn(**{**found, "labels": tuple(found["labels"])})


# What a type is underneath. A domain may be made of a domain, and the last one has the length or
# the precision. Looking costs more than all the rest, so it is done only for a table that has
# domains.
_PLAIN = "SELECT t.*, a.atttypmod AS modifier, true AS takes_null"
_DOMAINS = """
WITH RECURSIVE chain (oid, modifier, takes_null) AS (SELECT a.atttypid, a.atttypmod, true
    UNION ALL SELECT d.typbasetype, d.typtypmod, takes_null AND NOT d.typnotnull
    FROM chain JOIN pg_type d ON d.oid = chain.oid AND d.typtype = 'd')
SELECT p.*, chain.modifier, chain.takes_null FROM chain JOIN pg_type p ON p.oid = chain.oid
WHERE p.typtype <> 'd'"""

_COLUMNS = """
SELECT coalesce(json_agg(json_build_object(
    'name', a.attname, 'declared', format_type(a.atttypid, a.atttypmod),
    'base', b.typname, 'kind', b.typtype, 'modifier', b.modifier,
    'element', coalesce((SELECT e.typname FROM pg_type e
        WHERE e.oid = b.typelem AND b.typcategory = 'A'), ''),
    'labels', coalesce((SELECT json_agg(l.enumlabel) FROM pg_enum l WHERE l.enumtypid = b.oid),
        '[]'::json),
    'not_null', a.attnotnull OR NOT b.takes_null, 'takes_null', b.takes_null,
    'has_default', a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
    'generated', a.attgenerated <> '' OR a.attidentity = 'a',
    'collation', CASE WHEN a.attcollation <> t.typcollation THEN
        (SELECT quote_ident(n.nspname) || '.' || quote_ident(c.collname) FROM pg_collation c
         JOIN pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = a.attcollation)
        ELSE '' END,
    'exact', b.typname IN ('int2', 'int4', 'int8', 'bool', 'date', 'timestamp', 'timestamptz',
        'bytea') OR (b.typname IN ('text', 'varchar') AND getdatabaseencoding() = 'UTF8' AND
        (SELECT c.collisdeterministic FROM pg_collation c WHERE c.oid = a.attcollation))
    ) ORDER BY a.attnum), '[]'::json)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
CROSS JOIN LATERAL (%UNDERNEATH%) b
WHERE a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped"""

# Only what ON CONFLICT can use: whole columns, all rows, checked at once.
_KEYS = """
SELECT coalesce(json_agg((SELECT json_agg(a.attname) FROM pg_attribute a
    WHERE a.attrelid = r.oid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))), '[]'::json)
FROM pg_index i WHERE i.indrelid = r.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL"""

# Also those that are not valid for the rows that are there: new ones must pass them all the same.
_CHECKS = """
SELECT coalesce(json_agg(json_build_object('name', c.conname,
    'condition', pg_get_expr(c.conbin, c.conrelid), 'columns',
    (SELECT coalesce(json_agg(a.attname), '[]'::json) FROM pg_attribute a
     WHERE a.attrelid = r.oid AND a.attnum = ANY (c.conkey)))), '[]'::json)
FROM pg_constraint c WHERE c.conrelid = r.oid AND c.contype = 'c'
    AND coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)"""

_UNLOGGED = """
CASE WHEN r.relkind = 'p' THEN (SELECT coalesce(json_agg(p.oid::regclass::text), '[]'::json)
        FROM pg_class p JOIN pg_partition_tree(r.oid) tree ON tree.relid = p.oid
        WHERE p.relpersistence <> 'p')
    WHEN r.relpersistence <> 'p' THEN json_build_array(r.oid::regclass::text)
    ELSE '[]'::json END"""

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
    'unlogged', {_UNLOGGED}, 'columns', ({_COLUMNS}), 'keys', ({_KEYS}),
    'checks', ({_CHECKS}), 'in_the_way', ({_IN_THE_WAY}), 'privileges', {_PRIVILEGES},
    'max_prepared', current_setting('max_prepared_transactions')::int,
    'used_prepared', (SELECT count(*) FROM pg_prepared_xacts))::text
FROM pg_class r JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE r.oid = to_regclass(%PLACE%))"""
