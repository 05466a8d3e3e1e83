"""The report as one page that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from beadline.verify.report import (
    BAD,
    FINE,
    MISSED,
    UNCLEAR,
    Verification,
    by_kind,
    reasons,
    sentence,
)
from beadline.verify.terminal import without_control_codes

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --miss: #9a6700 }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff7b72; --miss: #d4a72c } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
div { overflow-x: auto; margin: 0 0 1.5rem }
table { border-collapse: collapse; width: 100% }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
code { font: 13px ui-monospace, monospace }
code span, td span { white-space: nowrap }
tr.below td { padding-top: 0 }
tr.above td { border-bottom: 0 }
.good { color: var(--good) } .miss { color: var(--miss) }
.bad { color: var(--bad); font-weight: 600 }
"""
_AFTER_COMMA = re.compile(r"(?<=,)(?=.)")
_CLASSES = {FINE: "good", BAD: "bad", UNCLEAR: "miss", MISSED: "miss"}


def page(report: Verification) -> str:
    """The whole page."""
    head = f"beadline verify: {escape(report.query)}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{head}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{head}</h1>",
            f'<p class="{_CLASSES[report.verdict]}">{escape(sentence(report))}</p>',
            _facts(report),
            _kinds(report),
            _violations(report),
            _unclear(report),
            _faults(report),
            _points(report),
            "</body></html>",
        ]
    )


def _facts(report: Verification) -> str:
    rows = ", ".join(f"{name} {count:,}" for name, count in report.rows.items())
    facts = [
        ("job", report.job),
        ("seed", str(report.seed)),
        ("epochs of the range", str(report.epochs)),
        ("rows shown", rows),
        ("took", f"{report.seconds:,.0f} s"),
        *(("note", note) for note in report.notes),
    ]
    return _table("What was run", ("", ""), ([escape(a), _words(b)] for a, b in facts))


def _kinds(report: Verification) -> str:
    found = (
        [escape(words), str(count), str(hit), _marked(verdict)]
        for words, count, hit, verdict in by_kind(report)
    )
    return _table("Verdict", ("kind of fault", "#planned", "#injected", "verdict"), found)


def _violations(report: Verification) -> str:
    if not report.violations:
        return ""
    found = (
        [_command(str(result.fault)), _words(str(violation)), _command(report.replay(result))]
        for result, violation in report.violations
    )
    return _table("Violations", ("fault", "what is wrong"), found, below="replay")


def _unclear(report: Verification) -> str:
    if not report.unclear:
        return ""
    found = (
        [_command(str(result.fault)), _words(result.unclear), _command(report.replay(result))]
        for result in report.unclear
    )
    return _table("Inconclusive", ("fault", "why nothing is known"), found, below="replay")


def _faults(report: Verification) -> str:
    found = (
        [
            _command(str(result.fault)),
            str(result.hits),
            f"{result.seconds:.1f}" if result.tried else "",
            _marked(result.verdict),
            _words(result.note),
        ]
        for result in report.results
    )
    again = f"<p>Any fault again: {_command(report.command('FAULT'))}</p>"
    return _table("Every fault", ("fault", "#hits", "#s", "verdict", "note"), found) + again


def _points(report: Verification) -> str:
    found = [[_words(why), _command(", ".join(names))] for why, names in reasons(report).items()]
    return _table("Crash points without a kill", ("why", "points"), found) if found else ""


def _marked(verdict: str) -> str:
    return f'<span class="{_CLASSES[verdict]}">{escape(verdict)}</span>'


def _words(text: str) -> str:
    """Prose, whatever it quotes: rows and logs may contain control characters and colours."""
    return escape(without_control_codes(text))


def _command(text: str) -> str:
    """Code that wraps only at spaces and after commas, and is copied unchanged."""
    words = (
        "<wbr>".join(f"<span>{escape(part)}</span>" for part in _AFTER_COMMA.split(word))
        for word in without_control_codes(text).split(" ")
    )
    return f"<code>{' '.join(words)}</code>"


def _table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], below: str = ""
) -> str:
    """Cells are HTML already; a column whose name begins with # holds numbers.

    ``below`` names one more cell of each row, which is too long for a column: it gets its own line.
    """
    numeric = [column.startswith("#") for column in columns]
    heads = "".join(
        f'<th{_class(number)} scope="col">{escape(column.removeprefix("#"))}</th>'
        for column, number in zip(columns, numeric, strict=True)
    )
    lines = []
    for row in rows:
        cells = zip(row[: len(columns)], numeric, strict=True)
        line = "".join(f"<td{_class(number)}>{cell}</td>" for cell, number in cells)
        kind = ' class="above"' if below else ""
        lines.append(f"<tr{kind}>{line}</tr>")
        if below:
            text = f'<td colspan="{len(columns)}">{escape(below)}: {row[-1]}</td>'
            lines.append(f'<tr class="below">{text}</tr>')
    body = "\n".join(lines)
    head = f"<thead><tr>{heads}</tr></thead>" if any(columns) else ""
    caption = f"<caption>{escape(title)}</caption>"
    return f"<div><table>{caption}{head}<tbody>{body}</tbody></table></div>"


def _class(number: bool) -> str:
    return ' class="n"' if number else ""
