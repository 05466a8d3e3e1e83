"""Redis: staged parts, written at commit by scripts that count the rows they wrote.

In the order in which a row meets them: ``columns`` (what a column means) and ``refused`` at
prepare; at commit ``ledger``, ``script`` (the one atomic act), ``chunks`` (which rows go into one
script), ``client`` (the URL, connections and errors), ``apply`` (what the answers mean),
``commit``, and ``acknowledged`` (was anything lost?). ``server`` asks whether the server can be
used, and what it can promise; ``sink`` is what a user makes.
"""

from beadline.sinks.redis.sink import RedisSink

__all__ = ["RedisSink"]
