"""`beadline verify` on jobs into MySQL, Redis and HBase: kills, a cut network, and nothing left."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kill.test_verify import kinds_of, verify
from tests.spark.jobs import write_input

JOB = """
from pathlib import Path
from beadline import exactly_once, sources
from beadline.sinks import HBaseSink, MySqlSink, RedisSink
HERE = Path(__file__).parent
def job(spark):
    rows = sources.files(spark, str(HERE / "in"), format="json", schema="id long, k string, v long")
    stream = exactly_once(rows, "{name}")
    {sinks}
    return stream
"""
EPOCHS = 8
ROWS = 10 * EPOCHS


class Store(NamedTuple):
    """What a job writes, and what is there of it and of Beadline afterwards."""

    sinks: str
    there: Callable[[], set[str]]
    real: set[str]


def mysql(request: pytest.FixtureRequest, name: str) -> Store:
    server = request.getfixturevalue("mariadb_server")

    def ask(*statements: str) -> list[tuple[str, ...]]:
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    ask(
        f"CREATE DATABASE {name}",
        f"CREATE TABLE {name}.`rows` (id bigint, k text, v bigint)",
        f"CREATE TABLE {name}.totals (k varchar(9) PRIMARY KEY, v bigint)",
    )
    dsn = server.dsn_of(name)
    return Store(
        f"""stream = stream.to(MySqlSink("{dsn}", "rows"), name="rows")
    sums = MySqlSink("{dsn}", "totals", mode="add", key="k")
    stream = stream.to(sums, rows=lambda df: df.select("k", "v").groupBy("k").sum("v")
        .toDF("k", "v"), name="totals")""",
        lambda: {table for (table,) in ask(f"SHOW TABLES IN {name}") if "ledger" not in table},
        {"rows", "totals"},
    )


def redis(request: pytest.FixtureRequest, name: str) -> Store:
    server = request.getfixturevalue("redis_server")

    def there() -> set[str]:
        with closing(server.client()) as client:
            return {key.decode() for key in client.keys(f"*{name}*")}

    place = f'"{server.url}", prefix="{name}:", staging=str(HERE / "staging")'
    return Store(
        f"""stream = stream.to(RedisSink({place}, command="RPUSH", into="rows"), name="rows",
        rows=lambda df: df.selectExpr("concat_ws('|', id, k, v) AS value"))
    stream = stream.to(RedisSink({place}, command="INCRBY"), name="totals",
        rows=lambda df: df.groupBy("k").sum("v").toDF("key", "value"))
    stream = stream.to(RedisSink({place}, command="XADD", into="log"), name="log",
        rows=lambda df: df.selectExpr("id", "k"))""",
        there,
        set(),
    )


def hbase(request: pytest.FixtureRequest, name: str) -> Store:
    server = request.getfixturevalue("hbase_server")
    server.create_table(name, "f")

    def there() -> set[str]:
        with closing(server.connect()) as connection:
            return {table.decode() for table in connection.tables() if name.encode() in table}

    return Store(
        f"""sink = HBaseSink("{server.host}", port={server.port}, table="{name}", row_key="id",
        family="f", staging=str(HERE / "staging"))
    stream = stream.to(sink, name="rows")""",
        there,
        {name},
    )


@pytest.mark.sampled(1)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("only", ["ledger.after,decide.after/group,cut:stall_answers@1"])
@pytest.mark.parametrize("store", [mysql, redis, hbase], ids=lambda store: store.__name__)
def test_into_a_store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    seed: int,
    store: Callable[[pytest.FixtureRequest, str], Store],
    only: str,
) -> None:
    name = f"verify_{uuid.uuid4().hex[:8]}"
    made = store(request, name)
    write_input(tmp_path / "in", EPOCHS)
    job = tmp_path / "job.py"
    job.write_text(JOB.format(name=name, sinks=made.sinks))
    if store is hbase:  # puts are idempotent: it keeps no open transaction with rows and ledger
        only = only.replace("ledger.after", "commit.after")
    found = verify(job, "--seed", str(seed), "--only", only, code=0)
    assert found["rows"]["rows"] == ROWS
    assert kinds_of(found) == set()
    assert [bool(fault["hits"]) for fault in found["faults"]] == [True] * 3
    assert made.there() == made.real
