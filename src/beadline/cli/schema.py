"""`beadline schema`: the JSON schema of TOML job files, for editors."""

from __future__ import annotations

import json as json_module

import typer

from beadline.cli.output import JsonOption


def schema(json: JsonOption = False) -> None:
    """Print the JSON schema of TOML job files, for completion and validation in editors."""
    from beadline.jobs.schema import schema as made

    typer.echo(json_module.dumps(made(), indent=None if json else 2))
