"""What passes is tried again until a deadline; what does not is told at once."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from beadline.shared.retry import (
    NO_ANSWER_S,
    Retries,
    Verdict,
    retry,
    running,
    starting,
)
from beadline.sinks.mysql import problems as mysql
from beadline.sinks.postgres import problems as postgres


class Problem(Exception):
    pass


def failing(times: int) -> tuple[Callable[[], str], list[int]]:
    calls: list[int] = []

    def act() -> str:
        calls.append(len(calls))
        if len(calls) <= times:
            raise Problem(f"try {len(calls)}")
        return "done"

    return act, calls


@pytest.mark.parametrize("verdict", [Verdict.BUSY, Verdict.AWAY, Verdict.UNCLEAR])
def test_what_passes_is_tried_again(verdict: Verdict) -> None:
    act, calls = failing(3)
    assert retry(act, lambda _: verdict, running(5.0)) == "done"
    assert len(calls) == 4


def test_a_final_error_is_raised_at_once() -> None:
    act, calls = failing(3)
    with pytest.raises(Problem, match="try 1"):
        retry(act, lambda _: Verdict.FINAL, running(60.0))
    assert len(calls) == 1


def test_there_is_an_end_to_it() -> None:
    act, calls = failing(1_000)
    begun_s = time.monotonic()
    with pytest.raises(Problem):
        retry(act, lambda _: Verdict.UNCLEAR, running(0.3))
    assert 0.3 <= time.monotonic() - begun_s < 10
    assert len(calls) > 1


def test_a_start_soon_gives_up_a_server_that_is_away_and_waits_for_one_that_starts() -> None:
    limits = starting(60.0)
    assert limits[Verdict.BUSY] == 60.0
    assert limits[Verdict.AWAY] == limits[Verdict.UNCLEAR] == NO_ANSWER_S
    assert starting(1.0)[Verdict.AWAY] == 1.0
    assert Verdict.FINAL not in limits


def test_the_deadline_runs_from_the_first_failure_and_is_reset_by_progress() -> None:
    retries = Retries(running(0.2))
    time.sleep(0.3)
    assert retries.again(Verdict.BUSY), "nothing has failed before"
    time.sleep(0.3)
    assert not retries.again(Verdict.BUSY)
    retries.progressed()
    assert retries.again(Verdict.BUSY)


AT = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
CONNECTING = {
    'FATAL:  password authentication failed for user "me"': Verdict.FINAL,
    "FATAL:  no pg_hba.conf entry for host": Verdict.FINAL,
    'FATAL:  database "shop" does not exist': Verdict.FINAL,
    "server does not support SSL, but SSL was required": Verdict.FINAL,
    "FATAL:  the database system is starting up": Verdict.BUSY,
    "FATAL:  sorry, too many clients already": Verdict.BUSY,
    "FATAL:  Passwort-Authentifizierung fehlgeschlagen": Verdict.UNCLEAR,
    "Connection refused": Verdict.AWAY,
    "timeout expired": Verdict.AWAY,
}


@pytest.mark.parametrize("text", CONNECTING)
def test_a_connection_to_postgres_that_failed_is_judged_by_its_text(text: str) -> None:
    assert postgres.verdict(psycopg.OperationalError(AT + text)) is CONNECTING[text]


def test_one_host_of_several_that_may_come_back_is_enough() -> None:
    both = f"{AT}{next(iter(CONNECTING))}\n{AT}Connection refused"
    assert postgres.verdict(psycopg.OperationalError(both)) is Verdict.AWAY


def test_other_errors_of_postgres() -> None:
    assert postgres.verdict(psycopg.OperationalError("the connection is lost")) is Verdict.AWAY
    assert postgres.verdict(psycopg.errors.LockNotAvailable()) is Verdict.BUSY
    assert postgres.verdict(psycopg.errors.UndefinedTable()) is Verdict.FINAL
    assert postgres.verdict(ValueError()) is Verdict.FINAL


def test_errors_of_mysql() -> None:
    import pymysql

    judged = {2013: Verdict.AWAY, 1040: Verdict.BUSY, 1205: Verdict.BUSY, 1290: Verdict.UNCLEAR}
    judged |= {1045: Verdict.FINAL, 1146: Verdict.FINAL}
    for code, verdict in judged.items():
        assert mysql.verdict(pymysql.OperationalError(code, "said")) is verdict
    assert mysql.verdict(ConnectionResetError()) is Verdict.AWAY
