"""Cells of the matrix: real servers, real kills, and nothing promised that was not seen."""

from __future__ import annotations

import pytest

from tests.harness.matrix.cells import Cell, every_cell
from tests.harness.matrix.run import run_cell

SERVERS = {
    "kafka": "kafka_cluster",
    "postgres": "postgres_server",
    "mysql": "mariadb_server",
    "redis": "redis_server",
    "hbase": "hbase_server",
}


@pytest.mark.sampled(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cell", every_cell(), ids=str)
def test_a_cell_holds(cell: Cell, seed: int, request: pytest.FixtureRequest) -> None:
    needed = {cell.source, cell.sink} & set(SERVERS)
    servers = {name: request.getfixturevalue(SERVERS[name]) for name in needed}
    found = run_cell(cell, servers, seed)
    assert found.held, found.to_dict()
