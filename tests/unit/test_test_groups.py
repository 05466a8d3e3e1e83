"""Tests of one server run in one worker, or each worker would start servers of its own."""

from __future__ import annotations

import os

import pytest


def test_a_parallel_worker_knows_the_group_of_a_test(request: pytest.FixtureRequest) -> None:
    """`pytest-xdist` puts it behind the test's id, and schedules by what it finds there."""
    marker = request.node.get_closest_marker("xdist_group")
    assert marker is not None
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith(f"@{marker.args[0]}")
