"""What every test folder shares: order, seed, sampling, honest counts, one Spark session.

Cheap proofs come first, so that a broken rule fails in seconds: unit and model. What comes then is
ordered for parallel workers: tests of one server follow each other in one worker, so that
each server is started once, and the long ones begin first, so that the workers end together.
Everything random hangs on one seed, printed at both ends with the command that replays it. A run
says where its time went, folder by folder, and how many tests it did not really run; in CI that
must be none.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from beadline.testing.servers.debian import INSTALL
from beadline.testing.servers.fixtures import (  # noqa: F401 (fixtures)
    hbase_server,
    hdfs_cluster,
    kafka_cluster,
    kafka_trio,
    mariadb_server,
    postgres_server,
    redis_cluster,
    redis_server,
)
from beadline.verify import class_archive
from tests.slowness import SLOWNESS, slowness, too_many

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = Path(__file__).parent
FOLDERS = ("unit", "model", "servers", "kill", "spark")
# The tests of one server, by what is in the name of its fixture or of the file.
SERVERS = ("trio", "kafka", "hbase", "mysql", "mariadb", "postgres", "redis", "hdfs")
# Whose fixtures are servers.
SERVED_BY = ("beadline.testing.servers.fixtures", "tests.servers.conftest")
MARKERS = (
    "long: runs only with BEADLINE_LONG=1 (make test-long); not selected otherwise",
    "sampled(n): of a test's parameter sets, n chosen by the seed run; all with BEADLINE_LONG=1",
)
TIMEOUT_S = 600  # of a test, as in pyproject.toml
DRIVERS_MANY = 10  # kill tests; with fewer, an archive of classes takes longer than it saves
# As with the servers' JVMs: none lives long enough for the optimizing compiler to pay. It saves a
# third of the JVM's CPU.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SEED: pytest.StashKey[int] = pytest.StashKey()
MANY_DRIVERS: pytest.StashKey[bool] = pytest.StashKey()


@dataclass
class FolderTime:
    """What the tests of one folder took; what fixtures share is set up by the first test."""

    tests: set[str] = field(default_factory=set)
    in_tests_s: float = 0.0
    in_fixtures_s: float = 0.0


TIMES: pytest.StashKey[dict[str, FolderTime]] = pytest.StashKey()


def in_ci() -> bool:
    """Where nothing may be skipped, retried or quarantined."""
    return os.environ.get("CI", "").lower() == "true"


def is_long() -> bool:
    """Whether all of the long fault runs were asked for."""
    return os.environ.get("BEADLINE_LONG", "") not in ("", "0")


def needs_server(reason: str) -> NoReturn:
    """Skip a test whose server cannot be had, with the reason; in CI that is a failure."""
    if in_ci():
        pytest.fail(f"CI must have this server: {reason}", pytrace=False)
    pytest.skip(reason)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed",
        type=int,
        default=None,
        help="seed of everything random in the tests; BEADLINE_SEED is the same; random if unset",
    )
    parser.addoption(
        "--fit",
        action="store_true",
        help="on a slow machine, run the share of the tests for which there is time (make test)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    seed = config.getoption("--seed")
    if seed is None:
        seed = int(os.environ.get("BEADLINE_SEED") or secrets.randbelow(2**32))
    config.stash[SEED] = seed
    config.stash[TIMES] = defaultdict(FolderTime)
    config.pluginmanager.register(Stopwatch(config.stash[TIMES]))
    if config.getoption("--fit"):
        # The workers of pytest-xdist read both: what takes long is not stuck yet.
        os.environ.setdefault("PYTEST_TIMEOUT", str(TIMEOUT_S * slowness()))
    # Our own tests may install the servers that they start; the package alone installs nothing.
    os.environ.setdefault(INSTALL, "1")
    # Subprocesses of the kill tests read the seed and the JVM's options there.
    os.environ["BEADLINE_SEED"] = str(seed)
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if QUICK_JVM not in options:  # a worker of pytest-xdist has them from its parent
        os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK_JVM} {options}".strip()
    # Hypothesis's plugin reads its option after this hook: one seed replays its runs too.
    if getattr(config.option, "hypothesis_seed", "") is None:
        config.option.hypothesis_seed = str(seed)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three workers for two cores, as most tests wait more than they work; on slow cores, two."""
    return 2 if config.getoption("--fit") and slowness() > 1 else 3


def pytest_report_header(config: pytest.Config) -> str:
    return replay(config)


def replay(config: pytest.Config) -> str:
    """The seed, and the command that runs the same again."""
    target = "test-long" if is_long() else "test"
    said, again = "", f"BEADLINE_SEED={config.stash[SEED]}"
    if config.getoption("--fit") and slowness() > 1:
        said = (
            f"this machine is {slowness()} times slower than that of the figures in the docs: of "
            "each file outside tests/unit a share of the tests is run, chosen by the seed "
            f"({SLOWNESS}=1 runs all)\n"
        )
        again = f"{SLOWNESS}={slowness()} {again}"
    return f"{said}seed {config.stash[SEED]}; replay: {again} make {target}"


def pytest_itemcollected(item: pytest.Item) -> None:
    # As soon as there is an item: pytest-xdist reads its group before the hook below is called.
    item.add_marker(pytest.mark.xdist_group("-".join(map(str, place(item)))))


@pytest.hookimpl(trylast=True)  # after -k and -m have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    dropped = set() if is_long() else long_items(items) | unsampled(items, config.stash[SEED])
    if config.getoption("--fit") and slowness() > 1:
        chosen = [item for item in items if item not in dropped]
        dropped |= too_many(chosen, config.stash[SEED], kept=("unit",))
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
    items[:] = sorted((item for item in items if item not in dropped), key=place)
    many = sum(folder_rank(item) == FOLDERS.index("kill") for item in items) > DRIVERS_MANY
    config.stash[MANY_DRIVERS] = many


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Once, and not before it is needed: unit and model tests start no JVM.
    many = item.config.stash.get(MANY_DRIVERS, None)
    if many is not None and folder_rank(item) >= FOLDERS.index("servers"):
        del item.config.stash[MANY_DRIVERS]
        class_archive.use(make=many)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    yield
    if nextitem is None or place(nextitem) != place(item):
        stop_servers(item)


def stop_servers(item: pytest.Item) -> None:
    """End the servers of a group of tests with its last one.

    A fixture of the session lives to its end, and a dozen idle servers take a part of two cores
    from the kills that follow. pytest has no public way to end one earlier.
    """
    any_item: Any = item
    forget_brokers()
    for definitions in any_item.session._fixturemanager._arg2fixturedefs.values():
        for definition in definitions:
            if definition.scope == "session" and definition.func.__module__ in SERVED_BY:
                definition.finish(any_item._request)


def forget_brokers() -> None:
    """Close what this process keeps for Kafka: it would look for brokers that are gone for ever."""
    producers: Any = sys.modules.get("beadline.sinks.kafka.producers")
    client: Any = sys.modules.get("beadline.sinks.kafka.client")
    if producers is not None:
        producers.pool().close()
    if client is not None:
        while client._clients:
            client._clients.popitem()[1].close()


def place(item: pytest.Item) -> tuple[int, int, str]:
    """Where a test comes in the run: its folder, its server, its file."""
    rank = folder_rank(item)
    if rank == FOLDERS.index("model"):  # they share nothing, and are the longest without a JVM
        return rank, 0, item.name
    if rank < FOLDERS.index("servers"):
        return rank, 0, item.path.stem
    used = f"{' '.join(getattr(item, 'fixturenames', ()))} {item.path.stem}"
    for number, server in enumerate(SERVERS):
        if server in used:
            return rank, number, server
    return rank, len(SERVERS), item.path.stem


def folder_rank(item: pytest.Item) -> int:
    """The place of a test's folder in the order of the run."""
    if TESTS not in item.path.parents:
        return len(FOLDERS)
    folder = item.path.relative_to(TESTS).parts[0]
    return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)


@dataclass(eq=False)  # a plugin is hashed
class Stopwatch:
    """Adds up what each folder's tests and their fixtures took."""

    times: dict[str, FolderTime]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test; the reports of parallel workers arrive here too."""
        spent = self.times[report.nodeid.removeprefix("tests/").partition("/")[0]]
        spent.tests.add(report.nodeid)
        if report.when == "call":
            spent.in_tests_s += report.duration
        else:
            spent.in_fixtures_s += report.duration


def folder_times(config: pytest.Config) -> Iterator[str]:
    """A line per folder: its seconds, with those of its fixtures, and its tests."""
    for folder, spent in config.stash[TIMES].items():
        total_s = spent.in_tests_s + spent.in_fixtures_s
        yield (
            f"{folder:<8}{total_s:>8.1f} s {len(spent.tests):>6,} tests "
            f"({spent.in_fixtures_s:.1f} s in fixtures and their servers)"
        )


def long_items(items: list[pytest.Item]) -> set[pytest.Item]:
    """The tests that only a long run takes."""
    return {item for item in items if item.get_closest_marker("long")}


def unsampled(items: list[pytest.Item], seed: int) -> set[pytest.Item]:
    """The parameter sets of `sampled` tests that this seed leaves out."""
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            groups[item.nodeid.partition("[")[0]].append(item)
    dropped: set[pytest.Item] = set()
    for name, group in groups.items():
        mark = group[0].get_closest_marker("sampled")
        assert mark is not None
        # Named by the test, so that adding a test elsewhere does not change this sample.
        chosen = random.Random(f"{seed} {name}").sample(group, min(mark.args[0], len(group)))
        dropped.update(set(group) - set(chosen))
    return dropped


def counts(config: pytest.Config) -> dict[str, int]:
    """Tests that did not really run, by the terminal reporter's own books.

    A retry plugin would report `rerun`; an expected failure is a quarantine by another name.
    """
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    stats: dict[str, list[object]] = reporter.stats if reporter else {}

    def total(*outcomes: str) -> int:
        return sum(len(stats.get(outcome, ())) for outcome in outcomes)

    return {
        "skipped": total("skipped"),
        "retried": total("rerun"),
        "quarantined": total("xfailed", "xpassed"),
    }


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: these are the last lines of the run
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    found = counts(session.config)
    refused = in_ci() and any(found.values())
    if refused and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        for line in folder_times(session.config):
            reporter.write_line(line)
        reporter.write_line(replay(session.config))
        reporter.write_line(", ".join(f"{name} {count}" for name, count in found.items()))
        if refused:
            reporter.write_line("CI=true allows none of these: the run has failed", red=True)


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run."""
    return pytestconfig.stash[SEED]


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Randomness of this test's own: the same seed gives it the same numbers in any order."""
    name, _, _ = request.node.nodeid.partition("@")  # behind it, parallel workers have the group
    return random.Random(f"{seed} {name}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small local Spark for the whole run; imported here, so that unit tests need no JVM."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Python workers unpickle functions of the test modules by name.
    path = (str(TESTS.parent), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    from beadline.environment.jars import spark_jars
    from beadline.environment.session import session
    from beadline.errors import JarsUnavailable

    connectors: tuple[str, ...] = ("kafka",)  # one session for all, so it has what any test needs
    try:
        spark_jars("kafka")
    except JarsUnavailable:
        connectors = ()
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    running = session("beadline-tests", connectors, **conf)
    yield running
    running.stop()
