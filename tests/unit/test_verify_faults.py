"""The plan of ``beadline verify``: from the seed alone, every point, and each fault by its name."""

from __future__ import annotations

import pytest

from beadline.errors import UsageError
from beadline.points import EVERY_POINT, POINTS
from beadline.verify import faults
from beadline.verify.faults import MOMENTS, Fault, planned
from tests.command_line import invoking


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("points", [list(POINTS), list(EVERY_POINT)])
def test_without_a_number_every_point_is_there(seed: int, points: list[str]) -> None:
    plan = planned(seed, None, points, network=True, expires=True)
    killed = [fault.kill.point for fault in plan if fault.is_kill and fault.kill]
    assert set(points) <= set(killed)
    assert len(killed) == len(points) + MOMENTS
    assert planned(seed, None, points, network=True, expires=True) == plan
    assert {fault.kind for fault in plan} == set(faults.KINDS)


@pytest.mark.parametrize("kills", [1, 2, 3, 8, 20, 60])
def test_a_number_of_kills_is_kept(kills: int) -> None:
    plan = planned(7, kills, list(POINTS), network=False, expires=False)
    assert sum(fault.is_kill for fault in plan) == kills
    assert not any(fault.kind in ("cut", "expire") for fault in plan)
    assert str(plan[0]) == "decide.before/process"


def test_every_fault_is_read_back_from_its_name() -> None:
    for fault in planned(7, None, list(EVERY_POINT), network=True, expires=True):
        assert Fault.parse(str(fault)) == fault
    both = faults.parse("decide.after#2/group, moment/worker@3,pause:decide.after,cut:stall@1")
    assert [fault.kind for fault in both] == ["point", "worker", "pause", "cut"]


@pytest.mark.parametrize("text", ["decide.never", "cut:wires", "moment/worker@x", "pause:", ""])
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--only"):
        faults.parse(text)


def test_a_kill_of_a_broker_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only our own kill tests have brokers to kill; here, the driver would die in their place."""
    with invoking("verify", monkeypatch, capsys) as verify:
        code, _, err = verify("job.py", "--only", "moment/broker")
    assert code == 2
    assert "Known are: process, group, worker" in " ".join(err.split())


def test_some_faults_need_another_before_them() -> None:
    recover = Fault.parse("recover.before")
    assert not recover.may_follow(None)
    assert not recover.may_follow(Fault.parse("decide.before"))
    assert recover.may_follow(faults.before(recover))
    fence = Fault.parse("kafka.fence")
    assert fence.may_follow(faults.before(fence))
    proof = Fault.parse("kafka.proof")
    assert not proof.may_follow(Fault.parse("decide.after"))
    assert str(faults.before(proof)) == "expire"
    assert proof.may_follow(faults.before(proof))
    assert Fault.parse("pause:decide.after").may_follow(None)
