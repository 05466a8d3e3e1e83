"""The list of commands. Each is a function in the module of the same name."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Annotated

import typer

from beadline.cli.analyze import analyze
from beadline.cli.demo import demo
from beadline.cli.doctor import doctor
from beadline.cli.epochs import epochs
from beadline.cli.run import run
from beadline.cli.schema import schema
from beadline.cli.state import state
from beadline.cli.transactions import transactions
from beadline.cli.verify import verify

# In the order of `beadline --help`. To add one: write `cli/<name>.py` with a function whose
# docstring is its help and whose `json: JsonOption` comes from `cli/output.py`, and list it here.
# Spark and extras are imported inside the functions, so that `--help` stays fast.
_COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("demo", demo),
    ("run", run),
    ("analyze", analyze),
    ("verify", verify),
    ("schema", schema),
    ("epochs", epochs),
    ("state", state),
    ("doctor", doctor),
)

app = typer.Typer(
    name="beadline",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"beadline {importlib.metadata.version('beadline')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """End-to-end exactly-once for PySpark Structured Streaming.

    Exit codes: 0 fine, 1 failed, 2 usage, 3 guarantee refused, 4 fenced,
    5 inconclusive (verify).
    """


for _name, _command in _COMMANDS:
    app.command(_name)(_command)
app.add_typer(transactions, name="transactions")
