"""A broker that refuses a user needs a person; one that is away is waited for. Told apart here."""

from __future__ import annotations

import pytest

pytest.importorskip("kafka")

from confluent_kafka import KafkaError, KafkaException
from kafka import errors

from beadline.ids import EpochId, QueryId
from beadline.sink import CommitBlocked
from beadline.sinks.kafka.access import NOT_AUTHORIZED, denied, login_refused, no_access, refusal
from beadline.sinks.kafka.client import TransactionClient
from beadline.sinks.kafka.settings import KafkaSettings
from tests.unit.test_kafka_client import ONE, OTHER

REFUSED = KafkaError(KafkaError._AUTHENTICATION, "Invalid username or password")
CUT = KafkaError(KafkaError._TRANSPORT, "Disconnected")
ALL_DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (errors.TransactionalIdAuthorizationFailedError(), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        (errors.TopicAuthorizationFailedError(), "TOPIC_AUTHORIZATION_FAILED"),
        (
            KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)),
            "TOPIC_AUTHORIZATION_FAILED",
        ),
    ],
)
def test_a_right_that_is_missing(error: Exception, name: str) -> None:
    assert denied(error) == name
    assert name in NOT_AUTHORIZED


@pytest.mark.parametrize(
    "error",
    [
        errors.KafkaConnectionError("socket disconnected"),
        errors.KafkaTimeoutError(),
        KafkaException(CUT),
        TimeoutError(),
    ],
)
def test_an_outage_is_no_refusal(error: Exception) -> None:
    assert denied(error) == ""


def said(broker: str, code: int, text: str) -> KafkaError:
    """An error as librdkafka words it."""
    return KafkaError(code, f"sasl_plaintext://{broker}/bootstrap: {text} (after 0ms in state UP)")


NO = "SASL authentication error: Authentication failed: Invalid username or password"
HANDSHAKE_CUT = (
    "SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's supported "
    "mechanisms: (n/a)"
)


def test_a_login_is_refused_by_a_broker_that_does_so_twice() -> None:
    assert "Invalid username" in refusal([REFUSED, ALL_DOWN, REFUSED])
    for heard in ([], [REFUSED], [CUT, CUT], [REFUSED, CUT], [ALL_DOWN]):
        assert refusal(heard) == ""


def test_a_broker_that_is_down_says_nothing_of_a_login() -> None:
    """The one beside it does, and a commit would be asked for without end."""
    down = said("down:9092", KafkaError._TRANSPORT, "Connect failed: Connection refused")
    no = said("good:9092", KafkaError._AUTHENTICATION, NO)
    for heard in ([no, down, no], [down, no, down, no, ALL_DOWN]):
        assert "Invalid username" in refusal(heard)
    other = said("other:9092", KafkaError._AUTHENTICATION, NO)
    assert refusal([no, other, down]) == "", "each of them once: it may be about to start"


def test_a_login_whose_connection_is_cut_is_not_refused() -> None:
    """librdkafka calls it an authentication error, however often it happens."""
    cut = said("good:9092", KafkaError._AUTHENTICATION, HANDSHAKE_CUT)
    assert refusal([cut, cut, ALL_DOWN, cut]) == ""
    assert refusal([cut, cut, said("good:9092", KafkaError._AUTHENTICATION, NO)]) == ""


def test_without_a_login_none_is_refused() -> None:
    assert login_refused(KafkaSettings("127.0.0.1:1", {})) == ""


class Denying(TransactionClient):
    """Brokers that refuse to tell who coordinates."""

    def __init__(self, error: Exception) -> None:
        self._admin = self
        self._manager = self
        self.error = error

    def run(self, ask: object) -> None:
        raise self.error

    def _forget(self, id_: str) -> None:
        """Nothing is known."""


def test_a_refusal_is_an_answer() -> None:
    denying = Denying(errors.TransactionalIdAuthorizationFailedError())
    name = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert denying.end([ONE, OTHER], commit=True) == {ONE: name, OTHER: name}
    away = Denying(errors.KafkaConnectionError())
    assert away.end([ONE], commit=True) == {ONE: "UNANSWERED"}


def test_a_refusal_is_an_error_over_which_no_epoch_is_given_up() -> None:
    epoch = EpochId(QueryId("orders", "a" * 32, "file:/c"), 3, "b" * 32, 1)
    assert isinstance(no_access(epoch, "sink", "k:9092", "no"), CommitBlocked)
