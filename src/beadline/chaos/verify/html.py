"""The report as one page that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from beadline.chaos.verify.report import BAD, FINE, MISSED, Report, by_kind, reasons

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --miss: #9a6700 }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff7b72; --miss: #d4a72c } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 0 0 1.5rem }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
code { font: 13px ui-monospace, monospace }
.good { color: var(--good) } .miss { color: var(--miss) }
.bad { color: var(--bad); font-weight: 600 }
"""
_CLASSES = {FINE: "good", BAD: "bad", MISSED: "miss"}


def page(report: Report) -> str:
    """The whole page."""
    head = f"beadline verify: {escape(report.query)}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{head}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{head}</h1>",
            f'<p class="{"bad" if report.violations else "good"}">{_sentence(report)}</p>',
            _facts(report),
            _kinds(report),
            _violations(report),
            _faults(report),
            _points(report),
            "</body></html>",
        ]
    )


def _sentence(report: Report) -> str:
    if report.violations:
        count = len(report.violations)
        return f"Exactly-once is violated: {count} times in {report.faults} faults."
    return (
        f"{report.kills} times kill -9, {report.faults} faults in all: the sinks show what an "
        "undisturbed run shows."
        if report.faults
        else "No fault came about: nothing is proven."
    )


def _facts(report: Report) -> str:
    rows = ", ".join(f"{name} {count:,}" for name, count in report.rows.items())
    facts = [
        ("job", report.job),
        ("seed", str(report.seed)),
        ("epochs of the range", str(report.epochs)),
        ("rows shown", rows),
        ("took", f"{report.seconds:,.0f} s"),
        *(("note", note) for note in report.notes),
    ]
    return _table("What was run", ("", ""), ([escape(a), escape(b)] for a, b in facts))


def _kinds(report: Report) -> str:
    found = (
        [escape(words), str(count), str(hit), _marked(verdict)]
        for words, count, hit, verdict in by_kind(report)
    )
    return _table("Verdict", ("kind of fault", "#planned", "#came about", "verdict"), found)


def _violations(report: Report) -> str:
    if not report.violations:
        return ""
    found = (
        [
            f"<code>{escape(str(result.fault))}</code>",
            escape(str(violation)),
            f"<code>{escape(report.replay(result))}</code>",
        ]
        for result, violation in report.violations
    )
    return _table("Violations", ("fault", "what is wrong", "replay"), found)


def _faults(report: Report) -> str:
    found = (
        [
            f"<code>{escape(str(result.fault))}</code>",
            str(result.hits),
            f"{result.seconds:.1f}" if result.tried else "",
            _marked(result.verdict),
            escape(result.note),
            f"<code>{escape(report.replay(result))}</code>",
        ]
        for result in report.results
    )
    return _table("Every fault", ("fault", "#hits", "#s", "verdict", "note", "replay"), found)


def _points(report: Report) -> str:
    found = [[escape(why), escape(", ".join(names))] for why, names in reasons(report).items()]
    return _table("Crash points without a kill", ("why", "points"), found) if found else ""


def _marked(verdict: str) -> str:
    return f'<span class="{_CLASSES[verdict]}">{escape(verdict)}</span>'


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already; a column whose name begins with # holds numbers."""
    numeric = [column.startswith("#") for column in columns]
    heads = "".join(
        f'<th{_class(number)} scope="col">{escape(column.removeprefix("#"))}</th>'
        for column, number in zip(columns, numeric, strict=True)
    )
    lines = [
        "".join(
            f"<td{_class(number)}>{cell}</td>" for cell, number in zip(row, numeric, strict=True)
        )
        for row in rows
    ]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    head = f"<thead><tr>{heads}</tr></thead>" if any(columns) else ""
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


def _class(number: bool) -> str:
    return ' class="n"' if number else ""
