"""`beadline doctor`: check that everything Beadline needs is installed, and say what to do."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.table import Table

from beadline.cli.output import JsonOption, output
from beadline.environment.doctor import CheckResult, examine

_COLOURS = {"ok": "green", "warning": "yellow", "broken": "red", "absent": "dim"}


def doctor(json: JsonOption = False) -> None:
    """Check Java, versions, jars and extras; exits with 1 if a requirement is not met."""
    findings = list(examine())
    healthy = all(finding.status != "broken" for finding in findings)
    result = {"ok": healthy, "checks": [asdict(finding) for finding in findings]}
    output(json).show(result, _table(findings))
    if not healthy:
        raise typer.Exit(1)


def _table(findings: list[CheckResult]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("check", "status", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        colour = _COLOURS[finding.status]
        # Escaped: Rich would read `beadline[kafka]` as markup.
        words = (finding.found.replace("[", r"\["), finding.fix.replace("[", r"\["))
        table.add_row(finding.name, f"[{colour}]{finding.status}[/]", *words)
    return table
