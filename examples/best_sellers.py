"""The three largest orders of each shop and hour, corrected when an order comes late.

An hour shows five minutes after its end, and again, with all of its ranks, when an order comes up
to a day later: an upsert by shop, hour and rank keeps the table right. What comes even later goes
to a table of its own. It needs no server: orders are JSON lines in a folder beside this file.

    cd examples && mkdir -p orders
    echo '{"shop": "a", "order": "o1", "amount": 5, "at": "2026-01-01T10:00:00Z"}' > orders/1.json
    beadline run best_sellers.py
    sqlite3 best_sellers.db 'SELECT * FROM best_sellers'

Ctrl-C stops it. New files are to be moved in whole.
"""

from pathlib import Path

from pyspark.sql import SparkSession

from beadline import Stream, exactly_once, sources
from beadline.event_time import windowed
from beadline.sinks import SqliteSink

HERE = Path(__file__).parent
CHECKPOINT = str(HERE / "checkpoints" / "best-sellers")
EVERY = "1 second"
ORDERS = "shop string, order string, amount long, at timestamp"


def job(spark: SparkSession) -> Stream:
    """Return the query; nothing runs before it is started."""
    orders = sources.files(
        spark, str(HERE / "orders"), format="json", schema=ORDERS, max_files_per_epoch=100
    )
    best = windowed(
        orders,
        "at",
        size="1 hour",
        by="shop",
        watermark="5 minutes",
        allowed_lateness="1 day",
        late="side",
    ).top(3, order_by="amount", columns=["amount", "order"])
    database = HERE / "best_sellers.db"
    table = SqliteSink(
        database, "best_sellers", mode="upsert", key=("shop", "window_start", "rank")
    )
    late = SqliteSink(database, "late_orders")
    return exactly_once(best, "best-sellers").to(table).to(late, output="late")
