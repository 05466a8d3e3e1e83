"""``HttpEndpoint``: rows to an HTTP endpoint, one POST per batch, over one connection per epoch.

The body holds every row with its id, the header ``Idempotency-Key`` the id of the batch, so that an
endpoint can drop repeats by either. Answers are read as follows::

    2xx                            taken
    already_taken_status, if given taken before, if the sink says honours_ids; else an error
    408, 409, 429, 5xx, no answer  not known, or not now: tried again
    401, 403, 407                  this user may not: the query stops, and no row is given up
    anything else                  rejected: the query stops, and says which rows

409 has two meanings in use: "I have these already", and "a request with this key is under way",
which may still fail. Read as the first, the second would lose rows, so it is tried again unless
``already_taken_status=409`` says which is meant.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from beadline.shared.row_json import plain_rows, to_json
from beadline.sink import (
    NOTHING_WRITTEN,
    BadSink,
    Denied,
    Verdict,
    name_from,
    redacted,
    retry,
    starting,
)
from beadline.sinks.write_ahead.endpoint import AlreadyTaken, Delivery, Endpoint, Rejected, TryAgain

BodyForm = Literal["lines", "array"]
_TYPES: dict[str, str] = {"lines": "application/x-ndjson", "array": "application/json"}
_OURS = {"idempotency-key", "content-type", "content-length", "transfer-encoding", "host"}
_TRY_AGAIN = {408, 409, 429}
_NEVER_TAKEN = {408, 429}
_DENIED = {401, 403, 407}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*\Z")
_ANSWER_BYTES = 1 << 16
_SHOWN_CHARACTERS = 200
_SECRET_LENGTH_MIN = 4
_SEGMENT_LENGTH_MIN = 8  # of a path: shorter ones are words like "api", and no secrets
_DIGEST_DIGITS = 8
_CONFLICT = (
    " (if that means that it has safely taken these rows before, and never that a first request is "
    "still under way, say so with already_taken_status=409)"
)
_TRUST = (
    " (if an authority of your own has signed its certificate, name a file with that authority's "
    "in the environment variable SSL_CERT_FILE of the driver)"
)


def _verdict(error: Exception) -> Verdict:
    """Whether connecting again may succeed; a bad certificate stays bad."""
    passes = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
    return Verdict.AWAY if passes else Verdict.FINAL


@dataclass(frozen=True, repr=False)
class HttpEndpoint(Endpoint):
    """POST every batch to ``url``, as JSON lines or as one JSON array.

    Each row is ``{"id": "...", "row": {...}}``. ``headers`` go with every request, and may hold a
    secret: their values show nowhere. ``timeout_s`` is for one request; how long a batch is tried
    again is the sink's ``timeout_s``. The endpoint must answer 2xx only when the rows are safe.
    ``already_taken_status`` is what it answers, 409 say, to rows that it has safely taken before;
    it must not answer that to a repeat whose first request is still under way.

    The path of a webhook is its password, so only a digest of it is shown.

    >>> HttpEndpoint("https://shop.example/orders?key=s3cret").target
    'https://shop.example/…fc7d0552'
    """

    url: str
    headers: Mapping[str, str] | tuple[tuple[str, str], ...] = ()
    timeout_s: float = 10.0
    form: BodyForm = "lines"
    already_taken_status: int | None = None
    # Of this epoch, and not in use just now; a batch that is sent takes one of them, or a new one.
    _idle: list[http.client.HTTPConnection] = field(default_factory=list, init=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what could never be sent, without repeating what may be secret."""
        headers = self._pairs
        object.__setattr__(self, "headers", headers)
        self._check_url()
        for name, value in headers:
            if not _HEADER_NAME.match(name) or not _HEADER_VALUE.match(value):
                raise BadSink(
                    f"{self!r}: header {name!r} cannot be sent: names are letters, digits and '-', "
                    f"values have no line breaks and only Latin-1 characters. {NOTHING_WRITTEN}"
                )
            if name.lower() in _OURS:
                raise BadSink(
                    f"{self!r}: header {name!r} is set by the endpoint. {NOTHING_WRITTEN}"
                )
        if self.form not in _TYPES:
            raise BadSink(
                f"{self!r}: form is 'lines' or 'array', not {self.form!r}. {NOTHING_WRITTEN}"
            )
        if not self.timeout_s > 0:
            raise BadSink(f"{self!r}: timeout_s must be more than 0. {NOTHING_WRITTEN}")
        taken = self.already_taken_status
        if taken is not None and (taken not in range(400, 500) or taken in _NEVER_TAKEN):
            raise BadSink(
                f"{self!r}: already_taken_status is a status from 400 to 499, not 408 or 429, and "
                f"not {taken!r}. {NOTHING_WRITTEN}"
            )

    def _check_url(self) -> None:
        try:
            parts = urlsplit(self.url)
            good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            good = False
        if not good or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise BadSink(
                "the url of an HttpEndpoint must be like https://host:port/path, in plain ASCII "
                f"(others percent-encoded). {NOTHING_WRITTEN}"
            )
        if parts.username is not None or parts.password is not None:
            raise BadSink(
                f"{self!r}: a url holds no user and password, because it is shown to people. Give "
                f"them as headers={{'Authorization': ...}}. {NOTHING_WRITTEN}"
            )

    def __repr__(self) -> str:
        """Where it posts to; no header, and nothing of the url that may be secret."""
        return f"HttpEndpoint({self.target})"

    def __getstate__(self) -> dict[str, Any]:
        """Connections stay in this process."""
        return {**self.__dict__, "_idle": []}

    @property
    def name(self) -> str:
        """The host, and a digest of the path."""
        return name_from(*filter(None, (self._parts.hostname, self._digest)))

    @property
    def target(self) -> str:
        """Scheme and host, and a digest of the path; nothing that may be secret."""
        parts = self._parts
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}" + (f"/…{self._digest}" if self._digest else "")

    @property
    def _digest(self) -> str:
        """A digest that tells one path from another without showing it."""
        path = self._parts.path.rstrip("/")
        return hashlib.sha256(path.encode()).hexdigest()[:_DIGEST_DIGITS] if path else ""

    @property
    def _pairs(self) -> tuple[tuple[str, str], ...]:
        given = self.headers.items() if isinstance(self.headers, Mapping) else self.headers
        return tuple((str(name), str(value)) for name, value in given)

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url)

    def check(self) -> None:
        """Is the endpoint reachable? Nothing is sent. One that is starting is waited for."""
        try:
            retry(self._reach, _verdict, starting(self.timeout_s))
        except (OSError, http.client.HTTPException) as error:
            raise BadSink(
                f"{self.target} cannot be reached: {self._said(error)}. Start the endpoint, or "
                f"correct the url. {NOTHING_WRITTEN}"
            ) from None

    def _reach(self) -> None:
        connection = self._connect()
        try:
            connection.connect()
        finally:
            connection.close()

    def deliver(self, delivery: Delivery) -> None:
        """One POST; what was answered decides."""
        try:
            status, reason, retry_after = self._post(delivery)
        except (OSError, http.client.HTTPException) as error:
            raise TryAgain(f"no answer from {self.target} ({self._said(error)})") from None
        if 200 <= status < 300:
            return
        said = self._shown(f"{status} {reason}")
        if status == self.already_taken_status:
            raise AlreadyTaken(f"it answers {said}")
        if status in _TRY_AGAIN or status >= 500:
            hint = _CONFLICT if status == 409 else ""
            raise TryAgain(f"it answers {said}{hint}", retry_after)
        raise (Denied if status in _DENIED else Rejected)(f"it answers {said}")

    def close(self) -> None:
        """Close what is open."""
        while self._idle:
            self._idle.pop().close()

    def _connect(self) -> http.client.HTTPConnection:
        parts = self._parts
        assert parts.hostname is not None
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                parts.hostname, parts.port or 443, timeout=self.timeout_s
            )
        return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=self.timeout_s)

    def _post(self, delivery: Delivery) -> tuple[int, str, float]:
        """Send the batch; return status, reason, and seconds to wait. The body may hold rows."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        parts = self._parts
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {
            **dict(self._pairs),
            "Idempotency-Key": delivery.id,
            "Content-Type": _TYPES[self.form],
        }
        try:
            connection.request("POST", path, self._body(delivery), headers)
            response = connection.getresponse()
            response.read(_ANSWER_BYTES)
        except BaseException:
            connection.close()
            raise
        if not response.isclosed():
            connection.close()  # there is more, which is not read; it connects again by itself
        self._idle.append(connection)
        wait = response.headers.get("Retry-After", "")
        return response.status, response.reason, float(wait) if wait.isdigit() else 0.0

    def _body(self, delivery: Delivery) -> bytes:
        rows = [
            to_json({"id": id_, "row": row})
            for id_, row in zip(delivery.ids, plain_rows(delivery.table), strict=True)
        ]
        if self.form == "array":
            return f"[{','.join(rows)}]".encode()
        return "".join(f"{row}\n" for row in rows).encode()

    def _said(self, error: Exception) -> str:
        hint = _TRUST if isinstance(error, ssl.SSLCertVerificationError) else ""
        return self._shown(f"{type(error).__name__}: {error}") + hint

    def _shown(self, text: str) -> str:
        """What the other side said, in one line, without our secrets: it may have echoed them."""
        whole = " ".join(redacted(text, self._secrets()).split())
        return whole if len(whole) <= _SHOWN_CHARACTERS else whole[: _SHOWN_CHARACTERS - 1] + "…"

    def _secrets(self) -> set[str]:
        """What must not be shown: header values, path and query, whole and in their words."""
        query, path = self._parts.query, self._parts.path.rstrip("/")
        values = [query, *re.split(r"[&=]", query), path, *(value for _, value in self._pairs)]
        words = {word for value in values for word in (value, *value.split())}
        words = {word for word in words if len(word) >= _SECRET_LENGTH_MIN}
        return words | {word for word in path.split("/") if len(word) >= _SEGMENT_LENGTH_MIN}
