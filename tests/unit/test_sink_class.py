"""What the class line of a sink says: which committable it prepares, and that it must say one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import pytest

from beadline.sink import C, Committable, FrameSink, Sink, StagedPart, StagedSink


@dataclass(frozen=True)
class OrdersPart(Committable):
    file: str


@dataclass(frozen=True)
class OtherPart(OrdersPart):
    pass


class OrdersSink(Sink[OrdersPart]):
    pass


class Between(Sink[C], Generic[C]):
    """A user's base class: its subclasses say it."""


def test_the_committable_is_taken_from_the_class_definition() -> None:
    assert OrdersSink.committable is OrdersPart
    assert StagedSink.committable is StagedPart

    class Orders(FrameSink[OrdersPart]):
        pass

    class Below(Between[OrdersPart]):
        pass

    assert Orders.committable is Below.committable is OrdersPart


def test_the_committable_is_inherited_and_can_be_overridden() -> None:
    class Heir(OrdersSink):
        pass

    class Another(OrdersSink):
        committable = OtherPart

    assert Heir.committable is OrdersPart
    assert Another.committable is OtherPart


def test_a_sink_without_a_committable_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"class Forgetful .*Forgetful\(Sink\[YourPart\]\)"):

        class Forgetful(Sink):  # type: ignore[type-arg]
            pass

    with pytest.raises(TypeError, match="class Unsaid does not say what its prepare returns"):

        class Unsaid(Between):  # type: ignore[type-arg]
            pass
