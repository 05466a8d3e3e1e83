"""HBase: puts and deletes under the decision's own time, through HBase's Thrift server."""

from beadline.sinks.hbase.sink import HBaseSink

__all__ = ["HBaseSink"]
