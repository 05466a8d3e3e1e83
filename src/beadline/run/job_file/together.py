"""Several queries of one job: what would refuse one is found before another is started."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from beadline.files import qualify
from beadline.ids import QueryId
from beadline.run.settings import Settings

if TYPE_CHECKING:
    from beadline.run.jobs import Planned


def check_all(plans: list[Planned]) -> None:
    """Ask of every query what its start will ask; nothing is written."""
    from beadline.guarantee.judge import judge
    from beadline.run import checks
    from beadline.run.facts import facts

    for plan in plans:
        stream, checkpoint = plan.stream, qualify(str(plan.checkpoint))
        settings = Settings(
            checkpoint, plan.every, plan.available_now, plan.output_mode, (), plan.keep,
            plan.options,
        )  # fmt: skip
        checks.check_stream(stream)
        checks.check_settings(stream, settings.options)
        checks.check_files(checkpoint, stream.mode)
        sinks = checks.bind(stream, QueryId(stream.name, uuid.uuid4().hex, checkpoint))
        checks.refuse_weak(judge(facts(stream, sinks)))
        checks.writer(stream, settings, checkpoint)
