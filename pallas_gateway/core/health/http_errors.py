"""HTTP errors as sentences without addresses and headers. Pure."""

from __future__ import annotations

import socket

import httpx

from pallas_gateway.http_answers import AnswerError
from pallas_gateway.telemetry.redaction import shortened

LONGEST = 300  # characters of a library's message


def sentence(failure: Exception) -> str | None:
    """The reason why a request got no answer; None if the exception is not an HTTP error."""
    if isinstance(failure, httpx.ConnectError):
        return _connect_error(failure)
    if isinstance(failure, (httpx.LocalProtocolError, UnicodeEncodeError)):  # their text shows the header
        return "a configured header holds a character that HTTP does not allow"
    if isinstance(failure, AnswerError):
        return str(failure)
    if isinstance(failure, (httpx.HTTPError, httpx.InvalidURL, ValueError)):
        return shortened(f"{type(failure).__name__}: {failure}".rstrip(": "), LONGEST)
    return None


def _connect_error(failure: httpx.ConnectError) -> str:
    text = str(failure)
    if "SSL" in text or "certificate" in text:
        return "TLS error"
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, socket.gaierror):
        cause = cause.__cause__ or cause.__context__
    return "host name not found" if cause is not None else "connection refused"
