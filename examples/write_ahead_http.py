"""Post every row to an HTTP endpoint, once: the endpoint drops repeats by the id of the row.

The endpoint here is a small shop that keeps orders in SQLite. ``INSERT OR IGNORE`` by the row's id
is all that it does for exactly-once, and it answers only when the orders are committed. If yours
cannot drop repeats, leave ``honours_ids`` out and allow the sink by name,
``allow="at-least-once"``: then the batch that is on its way when something dies may arrive twice.

Run it: ``python examples/write_ahead_http.py``. Against a shop of your own process, which you may
kill and start again while it runs: ``python examples/write_ahead_http.py serve shop.db 8080``. What
happens then is told in ``docs/write-ahead.md``.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beadline import Stream, exactly_once
from beadline.sinks import WriteAheadSink
from beadline.sinks.write_ahead import HttpEndpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = "Bearer let-me-in"


def job(spark: SparkSession, source: str, url: str, folder: str) -> Stream:
    """New files of orders go to the shop; ``folder`` keeps what is not delivered yet."""
    orders = spark.readStream.schema("id long, what string").json(source)
    shop = HttpEndpoint(url, headers={"Authorization": TOKEN})
    sink = WriteAheadSink(shop, folder=folder, name="shop", batch_rows=4, honours_ids=True)
    return exactly_once(orders, name="orders").to(sink)


class Shop(ThreadingHTTPServer):
    """Takes orders at POST /orders, each once."""

    daemon_threads = True

    def __init__(self, database: str, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Till)
        self.database = database
        with closing(sqlite3.connect(database)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, what TEXT)")

    @property
    def url(self) -> str:
        """Where to post to."""
        return f"http://127.0.0.1:{self.server_address[1]}/orders"


class Till(BaseHTTPRequestHandler):
    """One request: rows in, 204 when they are safe."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Take the batch in one transaction; what is known by its id is left out."""
        lines = self.rfile.read(int(self.headers["Content-Length"])).splitlines()
        if self.headers["Authorization"] != TOKEN:
            self.answer(401)
            return
        orders = [(order["id"], order["row"]["what"]) for order in map(json.loads, lines)]
        assert isinstance(self.server, Shop)
        with closing(sqlite3.connect(self.server.database, timeout=10)) as db, db:
            db.executemany("INSERT OR IGNORE INTO orders VALUES (?, ?)", orders)
        self.answer(204)

    def answer(self, status: int) -> None:
        """An answer without a body."""
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Quiet."""


def sold(database: str | Path) -> list[str]:
    """What the shop has taken."""
    with closing(sqlite3.connect(database)) as db:
        return [what for (what,) in db.execute("SELECT what FROM orders ORDER BY what")]


def main() -> None:
    """Send twelve orders through it, then start again: there is nothing left to do."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need the same packages
    spark = SparkSession.builder.master("local[2]").appName("write-ahead").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        (top / "in").mkdir()
        for number in range(3):
            orders = [{"id": i, "what": f"tea {number}-{i}"} for i in range(4)]
            (top / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, orders)))
        shop = Shop(str(top / "shop.db"))
        threading.Thread(target=shop.serve_forever, daemon=True).start()
        for _ in range(2):
            stream = job(spark, str(top / "in"), shop.url, str(top / "write-ahead"))
            stream.start(str(top / "checkpoint"), available_now=True).awaitTermination()
            found = sold(top / "shop.db")
            print(f"{len(found)} orders, {len(set(found))} of them different")
        shop.shutdown()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        Shop(sys.argv[2], int(sys.argv[3])).serve_forever()
    else:
        main()
