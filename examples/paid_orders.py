"""Orders beside their payments, which come within an hour; what is not paid by then shows without.

It needs no server: both sides are JSON lines in folders beside this file.

    cd examples && mkdir -p orders payments
    echo '{"order": "o1", "ordered_at": "2026-01-01T10:00:00Z", "amount": 5}' > orders/1.json
    echo '{"order": "o1", "paid_at": "2026-01-01T10:20:00Z", "paid": 5}' > payments/1.json
    beadline run paid_orders.py
    sqlite3 paid_orders.db 'SELECT * FROM paid_orders'

Ctrl-C stops it. New files are to be moved in whole.
"""

from pathlib import Path

from pyspark.sql import SparkSession

from beadline import Stream, exactly_once, sources
from beadline.event_time import interval_join
from beadline.sinks import SqliteSink

HERE = Path(__file__).parent
CHECKPOINT = str(HERE / "checkpoints" / "paid-orders")
EVERY = "1 second"
ORDERS = "order string, ordered_at timestamp, amount long"
PAYMENTS = "order string, paid_at timestamp, paid long"


def job(spark: SparkSession) -> Stream:
    """Return the query; nothing runs before it is started."""
    orders = sources.files(spark, str(HERE / "orders"), format="json", schema=ORDERS)
    payments = sources.files(spark, str(HERE / "payments"), format="json", schema=PAYMENTS)
    joined = interval_join(
        orders,
        payments,
        on="order",
        left_time="ordered_at",
        right_time="paid_at",
        between=("0 seconds", "1 hour"),
        how="left",
        watermark=("1 minute", "5 minutes"),  # the longest that each is out of order
    )
    return exactly_once(joined, "paid-orders").to(
        SqliteSink(HERE / "paid_orders.db", "paid_orders")
    )
