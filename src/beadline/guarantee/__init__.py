"""What a query promises, and why: known before it is started.

``stream.guarantee()`` and ``beadline analyze`` give the report; ``start()`` refuses by it.
"""

from beadline.guarantee.report import Finding, Kind, Report
from beadline.guarantee.sources import SourceSeen, declare

__all__ = ["Finding", "Kind", "Report", "SourceSeen", "declare"]
