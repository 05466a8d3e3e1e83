"""The one atomic act: a script that compares the ledger, writes rows, and counts them.

Redis runs a script alone, and puts all that it wrote into its log as one transaction; but it rolls
nothing back when a command fails in the middle (a key of another type, a sum beyond 64 bits). So
the ledger counts rows: the script first records all rows as written, which also finds out whether
the server takes writes at all, and at the first row that fails it records how many were. The next
script continues exactly there. Nothing that is called after the first write may end the script by
an error, hence ``pcall`` around every row.

It answers one of::

    applied                      the rows took effect
    elsewhere  <entry>           the ledger stands at another row; nothing was written
    refused    <row> <error>     the rows before this one took effect
    behind     <entry>           acknowledged epochs are missing; nothing was written
    newer, other, another <entry>   the ledger is at a newer epoch, another decision of this epoch,
                                    another incarnation; nothing was written
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from beadline.sinks.redis.columns import ONE_VALUE, WITH_FIELDS, Layout, binary

if TYPE_CHECKING:
    import pyarrow as pa

APPLIED, ELSEWHERE, REFUSED = b"applied", b"elsewhere", b"refused"
NEWER, OTHER, ANOTHER, BEHIND = b"newer", b"other", b"another", b"behind"

_GUARD = """
local sink, incarnation, epoch, nonce = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local first, count, total = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local previous = tonumber(ARGV[8])
local held = redis.call('HGET', KEYS[1], sink)
local done, whole = 0, -1
if held then
  local i, e, n, d, t = string.match(held, '^(%x+) (%d+) (%S+) (%d+) (%d+)$')
  if i ~= incarnation then return {'another', held} end
  if tonumber(e) > tonumber(epoch) then return {'newer', held} end
  if tonumber(e) == tonumber(epoch) then
    if n ~= nonce or t ~= total then return {'other', held} end
    done = tonumber(d)
    whole = previous
  else
    whole = tonumber(e)
    if tonumber(d) < tonumber(t) then whole = whole - 1 end
  end
end
if whole < previous then return {'behind', held or ''} end
if done ~= first then return {'elsewhere', held or ''} end
local function note(rows)
  local entry = {incarnation, epoch, nonce, string.format('%.0f', rows), total}
  redis.call('HSET', KEYS[1], sink, table.concat(entry, ' '))
end
note(first + count)
"""
# What is published is published again after a crash, so only older epochs than the newest are late.
_NEWEST = """
local sink, incarnation, epoch = ARGV[1], ARGV[2], ARGV[3]
local first, published = 0, sink .. '~published'
for _, field in ipairs({sink, published}) do
  local held = redis.call('HGET', KEYS[1], field)
  local i, e = string.match(held or '', '^(%x+) (%d+) ')
  if i == incarnation and tonumber(e) > tonumber(epoch) then return {'newer', held} end
end
redis.call('HSET', KEYS[1], published, incarnation .. ' ' .. epoch .. ' - 0 0')
local function note(rows) end
"""
_ROWS = """
local rows = #KEYS - 1
local base = 8 + names
local function column(number, row) return ARGV[base + (number - 1) * rows + row] end
local may_expire = false
local function failed(answer) return type(answer) == 'table' and answer.err end
local function act(key, row)
%s
end
for row = 1, rows do
  local ran, answer = pcall(act, KEYS[row + 1], row)
  local problem = failed(answer)
  if not ran then problem = problem or tostring(answer) end
  if problem then
    note(first + row - 1)
    return {'refused', tostring(row - 1), problem}
  end
end
return {'applied', ''}
"""
_DELETE = "if column({deleted}, row) == '1' then return redis.pcall('DEL', key) end"
_SIMPLE = "local answer = redis.pcall('{command}', key, column(1, row))"
_SET_EXPIRE = """local seconds = {expire}
if seconds ~= '' then return redis.pcall('SET', key, column(1, row), 'EX', seconds) end
return redis.pcall('SET', key, column(1, row))"""
_FIELDS = """local set, gone = {{'{command}', key{id}}}, {{'HDEL', key}}
local present = column(names + 1, row)
for field = 1, names do
  if present == '' or string.byte(present, field) == 49 then
    set[#set + 1] = ARGV[8 + field]
    set[#set + 1] = column(field, row)
  else
    gone[#gone + 1] = ARGV[8 + field]
  end
end
local answer
if #set > {bare} then answer = redis.pcall(unpack(set)) end
if '{command}' == 'HSET' and #gone > 2 and not failed(answer) then
  answer = redis.pcall(unpack(gone))
end"""
# Before the row is written, as nothing is rolled back: may this user EXPIRE? It changes nothing.
_MAY_EXPIRE = """local seconds = {expire}
if seconds ~= '' and not may_expire then
  local asked = redis.pcall('EXPIRE', key, '')
  for _, word in ipairs({{'NOPERM', 'ACL failure', 'The user executing'}}) do
    if string.find(failed(asked) or '', word, 1, true) then return asked end
  end
  may_expire = true
end"""
_EXPIRE = "if seconds ~= '' and not failed(answer) then redis.pcall('EXPIRE', key, seconds) end"


@dataclass(frozen=True)
class ScriptRows:
    """Rows as a script takes them: a list of keys, and a list of texts for each column.

    ``places`` says of each row in which part it is, and its number there, for errors.
    """

    keys: list[bytes]
    columns: list[list[bytes]]
    places: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, begin: int, end: int | None = None) -> ScriptRows:
        """Return the rows from one number to before another."""
        wanted = slice(begin, end)
        columns = [column[wanted] for column in self.columns]
        return ScriptRows(self.keys[wanted], columns, self.places[wanted])

    def take(self, numbers: Sequence[int]) -> ScriptRows:
        """Return the rows of these numbers."""
        columns = [[column[number] for number in numbers] for column in self.columns]
        keys = [self.keys[number] for number in numbers]
        return ScriptRows(keys, columns, [self.places[number] for number in numbers])

    def extend(self, more: ScriptRows) -> None:
        """Put more rows of the same shape behind these."""
        self.keys.extend(more.keys)
        self.places.extend(more.places)
        if not self.columns:
            self.columns.extend([] for _ in more.columns)
        for column, values in zip(self.columns, more.columns, strict=True):
            column.extend(values)


@dataclass(frozen=True)
class RedisScript:
    """A script, and the name under which the server keeps it."""

    source: bytes
    names: tuple[bytes, ...] = ()

    @property
    def sha(self) -> bytes:
        """What Redis calls it."""
        return hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def load(self) -> bytes:
        """Return the command that makes the server know it."""
        return command([b"SCRIPT", b"LOAD", self.source])

    def call(
        self, ledger: bytes, arguments: Sequence[bytes], rows: ScriptRows | None = None
    ) -> bytes:
        """Return the command that runs it, as it goes over the wire."""
        keys = [ledger, *(rows.keys if rows else ())]
        words = [b"EVALSHA", self.sha, b"%d" % len(keys), *keys, *arguments, *self.names]
        for column in rows.columns if rows else ():
            words += column
        return command(words)


def command(words: Sequence[bytes]) -> bytes:
    r"""Return a command in Redis's protocol.

    >>> command([b"GET", b"a"])
    b'*2\r\n$3\r\nGET\r\n$1\r\na\r\n'
    """
    sized = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"*%d\r\n%b" % (len(words), b"".join(sized))


@lru_cache(maxsize=64)
def script_for(layout: Layout, fields: tuple[str, ...], guarded: bool = True) -> RedisScript:
    """Return the script of a command; without a guard it writes unless a newer epoch is there."""
    names = f"local names = {len(fields)}"
    body = _ROWS % "\n".join(f"  {line}" for line in _act(layout, fields).splitlines())
    source = "\n".join((names, _GUARD if guarded else _NEWEST, body))
    return RedisScript(source.encode(), tuple(name.encode() for name in fields))


def mark_script() -> RedisScript:
    """Return the script that advances a ledger and writes no rows."""
    return RedisScript(f"{_GUARD}return {{'applied', ''}}".encode())


def _act(layout: Layout, fields: tuple[str, ...]) -> str:
    """Return what is done with one row; its answer is in ``answer`` at the end."""
    columns = len(fields) + 1 if fields else int(layout.command in ONE_VALUE)
    expire = ""
    if isinstance(layout.expire, str):
        columns += 1
        expire = f"column({columns}, row)"
    elif layout.expire is not None:
        expire = f"'{layout.expire:d}'"
    lines = [_DELETE.format(deleted=columns + 1)] if layout.deleted else []
    if layout.command == "SET" and expire:
        return "\n".join((*lines, _SET_EXPIRE.format(expire=expire)))
    if expire:
        lines.append(_MAY_EXPIRE.format(expire=expire))
    if layout.command in WITH_FIELDS:
        with_id, bare = (", '*'", 3) if layout.command == "XADD" else ("", 2)
        lines.append(_FIELDS.format(command=layout.command, id=with_id, bare=bare))
    elif layout.command == "DEL":
        lines.append("local answer = redis.pcall('DEL', key)")
    else:
        lines.append(_SIMPLE.format(command=layout.command))
    if expire:
        lines.append(_EXPIRE)
    return "\n".join((*lines, "return answer"))


def rows_of(batch: pa.RecordBatch, layout: Layout, partition: int, first: int) -> ScriptRows:
    """Return a batch as text, made column by column, in the order that ``_act`` expects.

    ``first`` is the number of its first row in the part.
    """
    count = batch.num_rows
    prefix = layout.prefix.encode()
    if layout.key:
        keys = _texts(batch, layout.key)
        keys = [prefix + key for key in keys] if prefix else keys
    else:
        keys = [prefix + layout.into.encode()] * count
    columns: list[list[bytes]] = []
    if layout.command in ONE_VALUE:
        columns.append(_texts(batch, layout.value))
    fields = layout.fields(batch.schema.names)
    if fields:
        columns += [_texts(batch, name) for name in fields]
        columns.append(_present([batch.column(name) for name in fields], count))
    if isinstance(layout.expire, str):
        columns.append(_texts(batch, layout.expire))
    if layout.deleted:
        columns.append(_texts(batch, layout.deleted))
    places = [(partition, number) for number in range(first, first + count)]
    return ScriptRows(keys, columns, places)


def _texts(batch: pa.RecordBatch, name: str) -> list[bytes]:
    """A column's texts; null is empty text, as ``_present`` says which fields are null."""
    column = binary(batch.column(name))
    found: list[bytes] = (column.fill_null(b"") if column.null_count else column).to_pylist()
    return found


def _present(columns: Sequence[Any], count: int) -> list[bytes]:
    """Say for each row which fields are there: nothing if all are, else a 1 or 0 for each."""
    if not any(column.null_count for column in columns):
        return [b""] * count
    marks = [[b"1" if there else b"0" for there in c.is_valid().to_pylist()] for c in columns]
    return [b"".join(row) for row in zip(*marks, strict=True)]
