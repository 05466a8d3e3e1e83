"""Redis: staged parts, written at commit by scripts that count the rows they wrote.

The files read in the order of a row's way: ``columns`` (what a column means), ``refused`` and
``settings`` (what a staged file says of itself), then at commit ``rows`` (text), ``slots`` and
``chunks`` (which rows go together), ``ledger``, ``script`` (the one atomic act), ``address`` and
``client`` (the way there), ``apply`` (what the answers mean), ``commit``, ``notes`` and ``loss``;
``check`` asks whether the server can be used, ``durability`` what it can promise, and ``sink`` is
the door.
"""

from beadline.sinks.redis.sink import RedisSink

__all__ = ["RedisSink"]
