"""The job files of `examples/`, each run as its first lines say, on real servers."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from beadline.environment.jars import require_connector
from beadline.errors import JarsUnavailable
from beadline.testing.servers import KafkaCluster, PostgresServer, RedisServer
from tests.conftest import needs_server
from tests.harness.matrix.lines import LineServer
from tests.spark.jobs import session_conf
from tests.spark.test_cli_run import Run, objects, run
from tests.spark.test_job_toml import run_until, table

__all__ = ["run"]  # the fixture

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = {
    "kafka_to_kafka",
    "kafka_to_postgres_and_files",
    "late_windows",
    "socket_journal_redis",
    "stream_stream_join",
    "visits",
    "windowed_counts",
}


def example(name: str, folder: Path) -> Path:
    """A copy, because checkpoints and output are made beside the job file."""
    return Path(shutil.copy(EXAMPLES / f"{name}.toml", folder))


@pytest.fixture
def topic(
    kafka_cluster: KafkaCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    """Topics of the test's own, named by the variables of the example, with records in them."""
    try:
        require_connector(spark, "kafka")
    except JarsUnavailable as error:
        needs_server(str(error))
    monkeypatch.setenv("KAFKA", kafka_cluster.bootstrap_servers)

    def made(variable: str, *values: Any) -> str:
        name = f"{variable.lower()}-{uuid.uuid4().hex[:8]}"
        kafka_cluster.create_topic(name, partitions=2)
        monkeypatch.setenv(variable, name)
        producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
        for number, value in enumerate(values):
            text = value if isinstance(value, str) else json.dumps(value)
            producer.produce(name, text.encode(), key=f"k{number}", partition=number % 2)
        assert producer.flush(30) == 0
        return name

    yield made
    from beadline.sinks.kafka.producers import pool

    pool().close()


def values(cluster: KafkaCluster, name: str) -> list[str]:
    return sorted((record.value or b"").decode() for record in cluster.read(name))


def test_every_example_is_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.toml")} == NAMES


def test_kafka_to_kafka(
    run: Run, topic: Callable[..., str], kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    topic("ORDERS", *(f"  ORDER {n:03d}" for n in range(200)), "")
    clean = topic("ORDERS_CLEAN")
    job = example("kafka_to_kafka", tmp_path)
    ended = run_until(run, job, lambda: len(values(kafka_cluster, clean)) >= 200)
    assert values(kafka_cluster, clean) == [f"order {n:03d}" for n in range(200)]
    assert ended["why"] == "stopped"
    # A second start continues where the first was: at most it finishes the last epoch once more.
    code, _, err = run(job, "--available-now", "--json")
    assert code == 0, err
    assert len(values(kafka_cluster, clean)) == 200


def test_kafka_to_postgres_and_files(
    run: Run,
    topic: Callable[..., str],
    postgres_server: PostgresServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = f"example_{uuid.uuid4().hex[:8]}"
    with closing(postgres_server.connect()) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(
            f"CREATE TABLE {schema}.orders (id bigint PRIMARY KEY, customer text NOT NULL, "
            "total numeric(12, 2))"
        )
        connection.commit()
    orders: list[Any] = [{"id": n, "customer": f"c{n % 7}", "total": n / 4} for n in range(100)]
    topic("ORDERS", *orders, {"id": 100, "customer": None, "total": 1}, "no json")
    monkeypatch.setenv("POSTGRES", postgres_server.dsn)
    monkeypatch.setenv("SCHEMA", schema)
    job = example("kafka_to_postgres_and_files", tmp_path)
    code, out, err = run(job, "--available-now", "--json")
    assert code == 0, err
    assert objects(out)[-1]["rows"] == {"table": 100, "archive": 101, "table-dead-letter": 1}
    with closing(postgres_server.connect()) as connection:
        found = connection.execute(f"SELECT * FROM {schema}.orders ORDER BY id").fetchall()
    assert [(row[0], row[1], float(row[2])) for row in found] == [
        (order["id"], order["customer"], order["total"]) for order in orders
    ]
    archive = spark.read.parquet(str(tmp_path / "out" / "orders"))
    assert sorted(row.id for row in archive.collect()) == list(range(101))
    (record,) = spark.read.json(str(tmp_path / "out" / "refused")).collect()
    assert "customer" in record.reason


def test_windowed_counts(run: Run, tmp_path: Path) -> None:
    clicks = [("/", "10:01"), ("/", "10:09"), ("/a", "10:02"), ("/", "10:11"), ("/a", "11:30")]
    (tmp_path / "clicks").mkdir()
    for number, (page, at) in enumerate(clicks):
        line = json.dumps({"page": page, "at": f"2026-01-01T{at}:00Z"})
        (tmp_path / "clicks" / f"{number}.json").write_text(line + "\n")
    database = tmp_path / "clicks.db"
    columns = "SELECT page, substr(begins, 12, 5), clicks FROM"

    def final() -> list[Any]:
        return table(database, f"{columns} final ORDER BY 2, 1")

    job = example("windowed_counts", tmp_path)
    ended = run_until(run, job, lambda: len(final()) >= 3)
    assert final() == [("/", "10:00", 2), ("/a", "10:00", 1), ("/", "10:10", 1)]
    so_far = table(database, f"{columns} so_far ORDER BY 2, 1")
    assert so_far == [*final(), ("/a", "11:30", 1)]
    assert {each["query"] for each in ended["queries"]} == {"clicks-so-far", "clicks-final"}


def put(folder: Path, number: int, *lines: dict[str, Any]) -> None:
    """Move a file in whole, as the examples say."""
    folder.mkdir(exist_ok=True)
    unfinished = folder.parent / f"{number}.new"
    unfinished.write_text("".join(json.dumps(line) + "\n" for line in lines))
    unfinished.rename(folder / f"{number}.json")


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """The state store that Spark's transformWithState needs."""
    key = "spark.sql.streaming.stateStore.providerClass"
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with session_conf(spark, {key: provider}):
        yield


@pytest.mark.usefixtures("rocksdb")
def test_late_windows(run: Run, tmp_path: Path) -> None:
    """The order of 10:02 corrects a window that was shown; the one of 08:00 is too late."""
    database = tmp_path / "turnover.db"
    job = example("late_windows", tmp_path)

    def order(at: str) -> dict[str, Any]:
        return {"shop": "a", "amount": 5, "at": f"2026-01-01T{at}:00Z"}

    def turnover() -> list[Any]:
        sql = "SELECT substr(window_start, 12, 5), orders, amount, revision FROM turnover"
        return table(database, f"{sql} ORDER BY 1")

    put(tmp_path / "orders", 1, order("10:01"), order("10:16"))
    assert run(job, "--available-now")[0] == 0
    assert turnover() == [("10:00", 1, 5, 0)]
    put(tmp_path / "orders", 2, order("10:02"), order("08:00"))
    code, out, err = run(job, "--available-now", "--json")
    assert code == 0, err
    assert turnover() == [("10:00", 2, 10, 1)]
    assert table(database, "SELECT substr(at, 12, 5), shop FROM late_orders") == [("08:00", "a")]
    marks = [each for each in objects(out) if each["event"] == "watermark"]
    assert sum(mark["late_rows"] for mark in marks) == 1


def test_visits(run: Run, tmp_path: Path) -> None:
    clicks = [("u1", "10:00"), ("u1", "10:29"), ("u2", "10:05"), ("u1", "11:00"), ("u3", "12:00")]
    lines = [{"user": user, "page": "/", "at": f"2026-01-01T{at}:00Z"} for user, at in clicks]
    put(tmp_path / "clicks", 1, *lines)
    code, _, err = run(example("visits", tmp_path), "--available-now")
    assert code == 0, err
    columns = "user, substr(began, 12, 5), substr(ended, 12, 5), clicks"
    found = table(tmp_path / "visits.db", f"SELECT {columns} FROM visits ORDER BY began, user")
    assert found == [
        ("u1", "10:00", "10:59", 2),
        ("u2", "10:05", "10:35", 1),
        ("u1", "11:00", "11:30", 1),
    ]


def test_stream_stream_join(
    run: Run, topic: Callable[..., str], kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Paid in time, paid an hour too late, never paid."""
    day = "2026-01-01T"
    topic("ORDERS", *({"id": f"o{n}", "at": f"{day}10:{n:02d}:00Z"} for n in range(30)))
    paid = [{"order": f"o{n}", "at": f"{day}10:{n + 10:02d}:00Z"} for n in range(10)]
    late = [{"order": f"o{n}", "at": f"{day}12:{n:02d}:00Z"} for n in range(10, 20)]
    topic("PAYMENTS", *paid, *late)
    joined = topic("ORDERS_PAID")
    job = example("stream_stream_join", tmp_path)
    code, _, err = run(job, "--available-now")
    assert code == 0, err
    found = [json.loads(value) for value in values(kafka_cluster, joined)]
    assert [each["id"] for each in found] == [f"o{n}" for n in range(10)]
    assert all(each["paid_at"] > each["ordered_at"] for each in found)


def test_socket_journal_redis(
    run: Run, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"lines-{uuid.uuid4().hex[:8]}"
    server = LineServer()
    server.limit = 500
    monkeypatch.setenv("LINES_HOST", "127.0.0.1")
    monkeypatch.setenv("LINES_PORT", str(server.port))
    monkeypatch.setenv("REDIS", redis_server.url)
    monkeypatch.setenv("LINES_KEY", key)
    job = example("socket_journal_redis", tmp_path)
    with redis_server.client() as client:
        try:
            run_until(run, job, lambda: client.xlen(key) >= 500)
            first = client.xlen(key)
            server.limit = 1 << 60
            ended = run_until(run, job, lambda: client.xlen(key) >= 700)
        finally:
            server.close()
        found = [fields for _, fields in client.xrange(key)]
    assert ended["generation"] == 2
    lines = [int(each[b"line"] if b"line" in each else each["line"]) for each in found]
    assert (first, lines[:500]) == (500, list(range(500)))
    # What the server handed to the first connection after its end is the window that remains.
    assert lines == sorted(set(lines))
    assert lines[500] <= 540
