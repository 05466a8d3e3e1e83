"""The driver's client of Kafka, where there is no Kafka."""

from __future__ import annotations

import gc
import logging
import threading
from pathlib import Path

import pytest

from beadline.sinks.kafka.client import connect
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing.servers.ports import LOOPBACK, free_ports


def test_a_connection_that_fails_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """An outage may be long, and is asked about all the while."""
    caplog.set_level(logging.CRITICAL, "kafka")  # what pytest keeps of the log keeps the sockets
    (port,) = free_ports(1)

    def held() -> tuple[int, int]:
        gc.collect()  # kafka-python's sockets refer to each other
        files = sum(1 for _ in Path("/proc/self/fd").iterdir())
        return threading.active_count(), files

    before: list[tuple[int, int]] = []
    for _ in range(3):
        with pytest.raises(Exception, match=r"(?i)timeout|bootstrap|broker"):
            connect(KafkaSettings(f"{LOOPBACK}:{port}"), timeout_s=0.3)
        before.append(held())
    assert before[0] == before[1] == before[2]
