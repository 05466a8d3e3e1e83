"""What the user of ``beadline verify`` asked for, and how to ask for the same again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from beadline.verify.faults import Fault
from beadline.verify.source_range import Limits

_SECRET = re.compile(
    r"password|passphrase|secret|token|credential|jaas|(access|private|account|[.])[.]?key|pem$"
    r"|//[^/@\s]+@",  # an address with somebody's name in it, and mostly with a password
    re.IGNORECASE,
)
_HIDDEN = "***"


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    job: str
    seed: int
    kills: int | None = None
    minutes: float = 15.0
    limits: Limits = field(default_factory=Limits)
    only: tuple[Fault, ...] = ()
    conf: Mapping[str, Any] = field(default_factory=dict)
    output_mode: str | None = None
    in_place: bool = False
    keep: bool = False
    fail_fast: bool = False
    timeout_s: float | None = None  # of each start; grows with the undisturbed run, unless given

    @property
    def options(self) -> tuple[str, ...]:
        """The words of the command that change what is run, but for seed and faults."""
        return tuple(self._options())

    def _options(self) -> Iterator[str]:
        usual = Limits()
        for name, value in vars(self.limits).items():
            if value != getattr(usual, name):
                yield from (f"--{name}", str(value))
        if self.timeout_s is not None:
            yield from ("--timeout", f"{self.timeout_s:g}")
        if self.output_mode is not None:
            yield from ("--output-mode", self.output_mode)
        if self.in_place:
            yield "--in-place"
        for key, value in self.conf.items():
            # A report is sent round: whoever runs it again fills in what is not for everybody.
            secret = _SECRET.search(key) or _SECRET.search(str(value))
            yield from ("--conf", f"{key}={_HIDDEN if secret else value}")
