"""`beadline schema`: what a TOML job file may hold, for editors."""

from __future__ import annotations

import json as json_module

import typer

from beadline.cli.output import JsonOption


def schema(json: JsonOption = False) -> None:
    """Print the JSON schema of job files, which editors complete and check TOML with."""
    from beadline.jobs.schema import schema as made

    typer.echo(json_module.dumps(made(), indent=None if json else 2))
