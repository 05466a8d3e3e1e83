"""What a query promises, and why, before it is started.

``stream.guarantee()`` and ``beadline analyze`` give the report; ``start()`` refuses a query by the
same report.
"""

from beadline.guarantee.report import Finding, FindingKind, Report
from beadline.guarantee.sources import SourceFacts, declare

__all__ = ["Finding", "FindingKind", "Report", "SourceFacts", "declare"]
