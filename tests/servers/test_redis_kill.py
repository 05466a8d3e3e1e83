"""``RedisSink`` while drivers that commit are killed with SIGKILL, at any moment."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import time
from pathlib import Path

from beadline.sink import Outcome
from beadline.testing.servers import RedisServer
from beadline.testing.suite.target import epoch_id
from tests.servers.test_redis_faults import ones, total
from tests.servers.test_redis_sink import Hands

ROWS = 20_000
WAIT_S = 30
_COMMIT = """
import pickle, sys
from beadline.sinks.redis import chunks
chunks.ROWS_MAX = 20
sink, epoch, parts = pickle.load(open(sys.argv[1], "rb"))
sink.commit(epoch, parts)
"""


def test_a_driver_that_is_killed_again_and_again(
    redis_server: RedisServer, tmp_path: Path, rng: random.Random
) -> None:
    """In the middle of a command on the wire if it so happens; every row counts once."""
    hands = Hands(redis_server.url, tmp_path / "staging", command="INCRBY")
    parts = hands.prepare(0, ones(rows=ROWS), ones(rows=ROWS))
    order = tmp_path / "order"
    order.write_bytes(pickle.dumps((hands.sink, epoch_id(0), parts)))
    seen = [0]
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", _COMMIT, str(order)]) as driver:
            deadline_s = time.monotonic() + WAIT_S
            while total(redis_server, hands) == seen[-1] and driver.poll() is None:
                assert time.monotonic() < deadline_s
            time.sleep(rng.uniform(0, 0.01))
            driver.kill()
        seen.append(total(redis_server, hands))
    print(f"rows after each kill: {seen}")
    assert 0 < seen[1] < 2 * ROWS, "the first was killed in the middle"
    assert hands.commit(0, parts) <= {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}
    assert total(redis_server, hands) == 2 * ROWS
