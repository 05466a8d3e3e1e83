"""What can be seen of a running query: epoch events, for logs, the command line and dashboards."""

from __future__ import annotations

from beadline.observe.events import Event, Listener, Tell, ignore

__all__ = ["Event", "Listener", "Tell", "ignore"]
