"""`beadline state`: the state of a query, read from its checkpoint.

Operators, their variables and their size on disk are read directly from small files; rows and keys
are read by Spark's own state data source, which needs a JVM. Nothing is changed, and the query may
be running meanwhile.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from beadline.cli.output import Console, JsonOption, output
from beadline.environment.quiet import quiet
from beadline.errors import CheckpointProblem, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from beadline.state.disk import DiskUse
    from beadline.state.metadata import StateOperator

_KEYS = 20
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def state(
    checkpoint: Annotated[
        str, typer.Argument(help="The query's checkpoint folder: a path or a URI.")
    ],
    operator: Annotated[
        int | None, typer.Option(min=0, help="Only this operator; they are numbered from 0.")
    ] = None,
    variable: Annotated[
        str | None,
        typer.Option("--variable", "--store", help="Only this variable; for a join left or right."),
    ] = None,
    keys: Annotated[
        int | None, typer.Option(min=1, help="Show this many keys, with their values.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="Show only keys with this value in a column: COLUMN=VALUE."),
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(min=0, help="Show the state after this epoch; default: the newest")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a query's state: operators, rows, bytes, epochs, keys. Changes nothing."""
    from beadline.state.reading import parse_key

    quiet()
    wanted = dict(parse_key(text) for text in key or ())
    asked = Asked(operator, variable, keys or (_KEYS if wanted else 0), wanted)
    console = output(json)
    found = look(checkpoint, epoch, asked)
    if found.operators and found.epoch is not None:
        console.say("[dim]Starting Spark, to read the rows …[/dim]")
        with _spark() as spark:
            read_rows(spark, found, asked, console)
    elif asked.keys:
        raise UsageError(f"checkpoint {found.checkpoint} holds no state that can be read yet.")
    console.show(as_object(found), *views(found))


@dataclass(frozen=True)
class Asked:
    """Which part of the state to show."""

    operator: int | None
    variable: str | None
    keys: int
    wanted: dict[str, str]


@dataclass
class FoundState:
    """The state after one epoch in a checkpoint; ``epoch`` is None if none is complete."""

    checkpoint: str
    epoch: int | None
    operators: list[FoundOperator]


@dataclass
class FoundOperator:
    """One operator, with the row counts and keys of its variables by name, as far as read."""

    operator: StateOperator
    disk: DiskUse
    rows: dict[str, int]
    keys: dict[str, list[dict[str, Any]]]


def look(checkpoint: str, epoch: int | None, asked: Asked) -> FoundState:
    """Read everything that needs no Spark."""
    from beadline.files import join, open_files, qualify
    from beadline.state.disk import disk_use
    from beadline.state.metadata import read_operators
    from beadline.state.reading import find_operator

    uri = qualify(checkpoint)
    files = open_files(uri, patient=False)
    if not files.exists(join(uri, "offsets")):
        raise UsageError(f"there is no checkpoint of Spark's in {uri}. Check its path.")
    complete = {int(name) for name in files.names(join(uri, "commits")) if name.isdigit()}
    if epoch is not None and epoch not in complete:
        known = f"{min(complete)} to {max(complete)}" if complete else "none"
        raise UsageError(f"checkpoint {uri} has no complete epoch {epoch}; it has {known}.")
    after = max(complete, default=None) if epoch is None else epoch
    operators = read_operators(files, uri, after)
    if asked.operator is not None:
        operators = (find_operator(operators, asked.operator, uri),)
    found = [FoundOperator(one, disk_use(files, uri, one.number), {}, {}) for one in operators]
    return FoundState(uri, after, found)


@contextmanager
def _spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from beadline.environment.session import session

    active = SparkSession.getActiveSession()
    spark = active.newSession() if active is not None else session("beadline-state")
    # Times are shown in UTC, whatever the machine's time zone.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        yield spark
    finally:
        if active is None:
            spark.stop()


def read_rows(spark: SparkSession, found: FoundState, asked: Asked, console: Console) -> None:
    """Count the rows of every requested variable, and read its keys."""
    from beadline.state.reading import names_of

    for one in found.operators:
        names = names_of(one.operator)
        if asked.variable is not None and asked.variable not in names:
            if asked.operator is None and len(found.operators) > 1:
                continue
            raise UsageError(
                f"operator {one.operator.number} ({one.operator.name}) has no variable "
                f"{asked.variable!r}; it has {', '.join(names)}."
            )
        for name in names if asked.variable is None else (asked.variable,):
            console.say(f"[dim]operator {one.operator.number}, {name} …[/dim]")
            _read(spark, found, one, name, asked)


def _read(
    spark: SparkSession, found: FoundState, one: FoundOperator, name: str, asked: Asked
) -> None:
    from pyspark.sql import functions as F

    from beadline.state.reading import matching, read_state

    rows = read_state(spark, found.checkpoint, one.operator.number, name, epoch=found.epoch)
    with _explained(found, one, name):
        one.rows[name] = rows.count()
    if not asked.keys or not asked.wanted.keys() <= set(rows.columns):
        if asked.variable is not None:
            matching(rows, asked.wanted)  # its error lists the columns
        return
    chosen = matching(rows, asked.wanted).limit(asked.keys)
    # As JSON, so that Spark itself formats times, decimals and bytes.
    packed = F.to_json(F.struct(*rows.columns), {"ignoreNullFields": "false"})
    with _explained(found, one, name):
        one.keys[name] = [json_module.loads(text) for (text,) in chosen.select(packed).collect()]


@contextmanager
def _explained(found: FoundState, one: FoundOperator, name: str) -> Iterator[None]:
    """Raise a one-sentence error if rows cannot be read."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from beadline.spark.failures import reason

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise CheckpointProblem(
            f"checkpoint {found.checkpoint}: {name} of operator {one.operator.number} cannot be "
            f"read: {reason(error)}. If the query is running, it may have deleted the files that "
            "were being read: try again. Nothing was changed."
        ) from error


# -- what is shown


def as_object(found: FoundState) -> dict[str, Any]:
    """Return everything, for programs."""
    return {
        "checkpoint": found.checkpoint,
        "epoch": found.epoch,
        "operators": [_operator_object(one) for one in found.operators],
    }


def _operator_object(one: FoundOperator) -> dict[str, Any]:
    operator, disk = one.operator, one.disk
    return {
        "operator": operator.number,
        "name": operator.name,
        "partitions": operator.partitions,
        "time_mode": operator.time_mode or None,
        "bytes": disk.size,
        "files": disk.files,
        "oldest_epoch": disk.oldest,
        "newest_epoch": disk.newest,
        "whole_epoch": disk.snapshot,
        "rows": one.rows,
        "variables": [
            {
                "name": variable.name,
                "kind": variable.kind or None,
                "key": (variable.user_key or variable.key).jsonValue(),
                "value": variable.value.jsonValue(),
            }
            for variable in operator.variables
            if not variable.internal
        ],
        "keys": one.keys,
    }


def views(found: FoundState) -> Iterator[RenderableType]:
    """Yield the tables for people."""
    if not found.operators:
        yield Text("The query keeps no state.")
        return
    when = "no epoch is complete yet" if found.epoch is None else f"after epoch {found.epoch}"
    yield Text.assemble(("State", "bold"), f" of {found.checkpoint}, {when}")
    for one in found.operators:
        yield from _operator_views(one)


def _operator_views(one: FoundOperator) -> Iterator[RenderableType]:
    from beadline.state.compare import describe, kind_of

    operator, disk = one.operator, one.disk
    yield Text.assemble(
        (f"operator {operator.number}: {kind_of(operator.name)}", "bold"),
        f", {operator.partitions} partition{'' if operator.partitions == 1 else 's'}, "
        f"{size(disk.size)} in {disk.files:,} files",
    )
    if disk.newest is not None:
        whole = "" if disk.snapshot is None else f", the newest snapshot after {disk.snapshot}"
        yield Text(f"  state after epochs {disk.oldest} to {disk.newest}{whole}")
    table = _table("  variable", "rows", "kind", "columns")
    known = {variable.name: variable for variable in operator.variables if not variable.internal}
    for name in one.rows or known:
        variable = known.get(name)
        table.add_row(
            Text(f"  {name}"),
            f"{one.rows[name]:,}" if name in one.rows else "",
            Text(variable.kind if variable else ""),
            Text(describe(variable) if variable else ""),
        )
    yield table
    for name, rows in one.keys.items():
        yield Text(f"  {name}: {len(rows)} of {one.rows[name]:,}", style="bold")
        yield _keys_table(rows)


def _keys_table(rows: Sequence[dict[str, Any]]) -> RenderableType:
    if not rows:
        return Text("  none")
    table = _table(*rows[0])
    for row in rows:
        table.add_row(*(Text(_shown(value)) for value in row.values()))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(Text(name), justify="right" if name == "rows" else "left")
    return table


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json_module.dumps(value)


def size(count: int) -> str:
    """Return a number of bytes as text for people.

    >>> size(1536)
    '1.5 kB'
    """
    number = float(count)
    for unit in _UNITS:
        if number < 1000 or unit == _UNITS[-1]:
            break
        number /= 1000
    return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
