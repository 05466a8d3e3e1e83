"""Several queries of one job: what would refuse one is found before another is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beadline.spark.settings import Settings

if TYPE_CHECKING:
    from beadline.jobs.loading import Planned


def check_all(plans: list[Planned]) -> None:
    """Ask of every query what its start will ask; nothing is written."""
    from beadline.spark.analyze import check_start

    for plan in plans:
        settings = Settings(
            str(plan.checkpoint), plan.every, plan.available_now, plan.output_mode, (), plan.keep,
            plan.options,
        )  # fmt: skip
        check_start(plan.stream, settings)
