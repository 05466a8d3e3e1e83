"""The workload from Kafka to Kafka: keyed, numbered records in, the same records out.

The records of one key are numbered from 0 on. So a reader of the target needs to know nothing
but the last number of each key to say of every record whether it is the right one: what is missing,
there twice or out of order shows at once, while the job runs::

    <name>-in    3 partitions; key, and the record's number as text
    <name>-out   2 partitions; the same (KafkaSink)
    <folder>/totals.db     records and sum of numbers by key, if asked for (SqliteSink)
    <folder>/checkpoint/   Spark's progress and the decision log
    <folder>/scratch/      what the children said, and marks of where they died
    <folder>/job.json      this description, for the driver process
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from beadline.demo.workload import RunFolder

SOURCE_PARTITIONS = 3  # more than there are cores: some worker prepares two parts of an epoch
TARGET_PARTITIONS = 2
OUT = "out"
_DESCRIPTION = "job.json"


@dataclass(frozen=True)
class KafkaWorkload(RunFolder):
    """One job, with a folder and topics of its own on a cluster that others may use too."""

    servers: str = ""
    seed: int = 0
    totals: bool = False
    transaction_timeout_s: float = 120.0
    sink_servers: str = ""  # another way to the same cluster, through a proxy
    name: str = field(default_factory=lambda: f"kills-{uuid.uuid4().hex[:12]}")

    @property
    def source(self) -> str:
        """The topic that is read."""
        return f"{self.name}-in"

    @property
    def target(self) -> str:
        """The topic that is written."""
        return f"{self.name}-out"

    @property
    def order(self) -> Path:
        """Where a child is told to die (``BEADLINE_CRASH_FILE``)."""
        return self.scratch / "order.json"

    @property
    def stop(self) -> Path:
        """When it is there, a child stops its query and ends."""
        return self.scratch / "stop"

    def save(self) -> None:
        """Write the description down."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        fields: dict[str, Any] = {**asdict(self), "folder": str(self.folder)}
        (self.folder / _DESCRIPTION).write_text(json.dumps(fields), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> KafkaWorkload:
        """Read it back."""
        fields = json.loads((folder / _DESCRIPTION).read_text("utf-8"))
        return cls(**{**fields, "folder": folder})
