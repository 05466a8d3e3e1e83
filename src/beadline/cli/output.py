"""One small interface for both kinds of readers: people, through Rich, and programs, through JSON.

A command prints everything once, for either reader. With `--json` progress is left out, and stdout
holds one object per line, the last of which is the result; so `| tail -1 | jq` always works.
"""

from __future__ import annotations

import json as json_module
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.text import Text

from beadline.errors import BeadlineError

_PIPE_COLUMNS = 140  # a file has no width; Rich's default of 80 breaks the words of tables

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, one object per line; the last is the result.")
]


class Console(ABC):
    """Where the output of a command goes."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Report progress, to people only; Rich markup is allowed."""

    @abstractmethod
    def show(self, result: Mapping[str, Any], *views: RenderableType) -> None:
        """Print the result: the object for programs, the views (tables, text) for people."""

    @abstractmethod
    def fail(self, error: BeadlineError) -> None:
        """Print an error that ends the command; its exit code is the caller's business."""


class ForPeople(Console):
    """Rich text on stdout, errors on stderr."""

    def __init__(self) -> None:
        self.console = RichConsole()
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console = RichConsole(width=_PIPE_COLUMNS)

    def say(self, text: str) -> None:
        """Print one line with markup; a terminal wraps it, a log gets it as one line."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def show(self, result: Mapping[str, Any], *views: RenderableType) -> None:
        """Print the views."""
        for view in views:
            self.console.print(view, highlight=False, soft_wrap=isinstance(view, str | Text))

    def fail(self, error: BeadlineError) -> None:
        """Print the message verbatim: it may contain brackets that are not markup."""
        console = RichConsole(stderr=True, soft_wrap=True)
        console.print(Text.assemble((type(error).__name__, "bold red"), f": {error}"))


class ForPrograms(Console):
    """JSON on stdout, one object per line."""

    def say(self, text: str) -> None:
        """Print nothing: a program waits for the result."""

    def show(self, result: Mapping[str, Any], *views: RenderableType) -> None:
        """Print the object."""
        _print_object(result)

    def fail(self, error: BeadlineError) -> None:
        """Print the error as an object."""
        _print_object(
            {"error": type(error).__name__, "message": str(error), "exit_code": error.exit_code}
        )


def output(json: bool) -> Console:
    """Return the console for the `--json` option."""
    return ForPrograms() if json else ForPeople()


def _print_object(value: Mapping[str, Any]) -> None:
    """Print one line and flush it, so that it survives if the command is killed next."""
    sys.stdout.write(json_module.dumps(value, default=str) + "\n")
    sys.stdout.flush()
