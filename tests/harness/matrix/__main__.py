"""Run the matrix, or some of it.

    python -m tests.harness.matrix --seed 7 --only kafka/redis/exactly_once

The last line is one JSON object: ``cells``, ``held``, ``broken``. Exits with 1 if a cell is broken.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from beadline.verify import class_archive
from tests.harness.matrix import table
from tests.harness.matrix.cells import Cell, Result, every_cell
from tests.harness.matrix.run import run_cell

_CELLS_MANY = 4  # of which each starts three drivers


@contextmanager
def servers_of(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Start the real servers that these cells need, and no others."""
    from beadline.testing import servers

    known: dict[str, Any] = {
        "kafka": servers.kafka,
        "postgres": servers.postgres,
        "mysql": servers.mariadb,
        "redis": lambda: servers.redis({"appendonly": "yes", "appendfsync": "always"}),
        "hbase": servers.hbase,
    }
    needed = {name for cell in cells for name in (cell.source, cell.sink) if name in known}
    with ExitStack() as stack:
        yield {name: stack.enter_context(known[name]()) for name in sorted(needed)}


def run_all(cells: Sequence[Cell], seed: int, console: Console) -> list[Result]:
    """Run cells one after the other."""
    results = []
    with servers_of(cells) as servers:
        for number, cell in enumerate(cells, 1):
            result = run_cell(cell, servers, seed)
            results.append(result)
            color = "green" if result.held else "red"
            console.print(
                f"[{number}/{len(cells)}] {cell}: {result.promised}, observed "
                f"[{color}]{result.observed}[/] ({result.lost} lost, {result.duplicated} twice, "
                f"{result.seconds:.0f} s) {result.note}",
                highlight=False,
            )
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.matrix", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--only", type=Cell.parse, action="append", help="source/sink/function")
    parser.add_argument("--sample", type=int, help="this number of cells, chosen by the seed")
    parser.add_argument("--write", type=Path, help="the page of the docs to write")
    asked = parser.parse_args(arguments)
    cells = asked.only or every_cell()
    if asked.sample:
        cells = random.Random(asked.seed).sample(cells, min(asked.sample, len(cells)))
    console = Console(width=200)
    class_archive.use(make=len(cells) >= _CELLS_MANY)
    results = run_all(cells, asked.seed, console)
    console.print(table.for_terminal(results))
    if asked.write:
        asked.write.write_text(table.for_docs(results, asked.seed), "utf-8")
    held = sum(result.held for result in results)
    broken = [result.to_dict() for result in results if not result.held]
    last = {"seed": asked.seed, "cells": len(results), "held": held, "broken": broken}
    print(json.dumps(last))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
