"""The URL of Redis: whatever is wrong with it, the error repeats nothing of a password."""

from __future__ import annotations

import traceback

import pytest

from beadline.errors import BadSink
from beadline.sinks.redis.address import Address

URLS = [
    "redis://:12?s3cret@host:6379/0",
    "redis://:12?s3cret&more@host:6379/0",
    "redis://:12?s3cret=1@host:6379/0",
    "redis://:12?s3cret#@host:6379/0",
    "redis://:12?socket_s3cret@host:6379/0",
    "redis://:12?db=s3cret@host:6379/0",
    "redis://:12/s3cret@host:6379/0",
    "redis://host/0?s3cret=true",
]


@pytest.mark.parametrize("url", URLS)
def test_nothing_of_a_password_is_repeated(url: str) -> None:
    with pytest.raises(BadSink, match=r"special characters.*written as %XX") as caught:
        Address.parse(url)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_options_that_are_taken() -> None:
    url = "rediss://:p%3Fw@host/1?socket_timeout=3&ssl_ca_certs=/ca.pem&client_name=me"
    assert Address.parse(url) == Address("host:6379", 1)
