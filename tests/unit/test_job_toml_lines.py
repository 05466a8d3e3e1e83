"""Where the keys of a TOML job file stand."""

from __future__ import annotations

import pytest

from beadline.jobs.lines import KeyPath, lines_of, parse

TEXT = '''\
# queries.name = 1
[spark]
driver.memory = "2g"   # [spark.x]
"spark.sql.\\u0061" = 1
[sources.orders]
type = "files"
options = { multiLine = true, sep = "]}" }
topics = [
  "a",  # one
  "b",
]
watermark = {column = "at", delay = "1 s"}
[[queries]]
name = 'first'
sql = """
SELECT "x" = 1,
[queries]
name = 2 \\""" still
"""""
every = "1 s"
[[queries.sinks]]
table = "t"
[[queries.sinks]]
dead_letter = { type = "x", nested = { deep = [1, { key = 2 }] } }
[[queries]]
name = "second"
[queries.more]
a . b = 1
[[queries.sinks]]
table = \'\'\'
name = 3\'\'\'
"quoted key" = 1979-05-27T07:32:00Z
'''
WHERE: dict[KeyPath, int] = {
    ("spark",): 2,
    ("spark", "driver"): 3,
    ("spark", "driver", "memory"): 3,
    ("spark", "spark.sql.a"): 4,
    ("sources", "orders"): 5,
    ("sources", "orders", "options", "sep"): 7,
    ("sources", "orders", "topics", 1): 10,
    ("sources", "orders", "watermark", "delay"): 12,
    ("queries",): 13,
    ("queries", 0): 13,
    ("queries", 0, "sql"): 15,
    ("queries", 0, "every"): 20,
    ("queries", 0, "sinks", 0, "table"): 22,
    ("queries", 0, "sinks", 1): 23,
    ("queries", 0, "sinks", 1, "dead_letter", "nested", "deep", 1, "key"): 24,
    ("queries", 1, "name"): 26,
    ("queries", 1, "more", "a", "b"): 28,
    ("queries", 1, "sinks", 0): 29,
    ("queries", 1, "sinks", 0, "table"): 30,
    ("queries", 1, "sinks", 0, "quoted key"): 32,
}


@pytest.mark.parametrize("path", WHERE, ids=str)
def test_the_line_of_a_key(path: KeyPath) -> None:
    assert lines_of(TEXT)[path] == WHERE[path]


def test_no_key_is_invented_and_none_is_missed() -> None:
    """What the reader finds in the text, and what the finder of lines does, are the same keys."""

    def paths(value: object, path: KeyPath) -> set[KeyPath]:
        found = {path} if path else set()
        if isinstance(value, dict):
            found = found.union(*(paths(each, (*path, key)) for key, each in value.items()))
        if isinstance(value, list):
            found = found.union(*(paths(each, (*path, n)) for n, each in enumerate(value)))
        return found

    assert set(lines_of(TEXT)) == paths(parse(TEXT), ())


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing", "a = 1", "a=[]", "a={}\n", "[a]"])
def test_short_texts(text: str) -> None:
    assert set(lines_of(text)) == {(key,) for key in parse(text)}
