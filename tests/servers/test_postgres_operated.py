"""``PostgresSink`` and those who run the server: limits that they set for everybody."""

from __future__ import annotations

from typing import Literal

import pytest

from beadline.sinks import PostgresSink
from beadline.sinks.postgres.connect import Server
from beadline.testing.servers import PostgresServer
from tests.servers.postgres_target import Orders, table

SLOWLY = (
    "CREATE FUNCTION {0}.slowly() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END $$; "
    "CREATE TRIGGER slowly BEFORE INSERT ON {0}.orders FOR EACH ROW EXECUTE FUNCTION {0}.slowly()"
)


@pytest.mark.parametrize("way", ["prepared", "staged"])
def test_a_limit_on_statements_does_not_stop_a_large_epoch(
    postgres_server: PostgresServer, way: Literal["prepared", "staged"]
) -> None:
    """The commit of a staged epoch is one statement: it would fail at every start."""
    orders = Orders(postgres_server, "id bigint, total bigint")
    place = f'"{orders.schema}"'
    role = f"limited_{way}"
    orders.run(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    orders.run(f"ALTER ROLE {role} SET statement_timeout = '100ms'")
    orders.run(f"GRANT ALL ON SCHEMA {place} TO {role}; GRANT ALL ON {place}.orders TO {role}")
    if way == "staged":
        orders.run(SLOWLY.format(place))
    ((major,),) = orders.run("SELECT current_setting('server_version_num')::int / 10000")
    if major >= 17:
        orders.run(f"ALTER ROLE {role} SET transaction_timeout = '100ms'")
    dsn = postgres_server.dsn_of("postgres", role, "pw")
    orders.sink = PostgresSink(dsn, "orders", orders.schema, how=way, timeout_s=20.0)
    rows = table(id=[1, 2], total=[10, 20])
    orders.start(rows)
    orders.epoch(0, rows)
    assert orders.rows() == [(1, 10), (2, 20)]
    with Server(dsn, 20.0).connected() as run:
        run("BEGIN; SELECT pg_sleep(0.3); SELECT pg_sleep(0.3); COMMIT")
