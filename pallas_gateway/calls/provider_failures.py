"""Reasons of failed LLM requests, in the same words for every provider: the failure, and a remedy if one is known.

The clients of providers put the body of an error into their exceptions as Python prints it, report a refused connection
as "Request timed out.", and add addresses and statistics. The reason is in the body and in the causes of the exception.
"""

from __future__ import annotations

import errno
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import httpx2

from pallas_gateway.errors import CallFailedError
from pallas_gateway.limits import LARGEST_ANSWER_BYTES
from pallas_gateway.telemetry.redaction import shortened

COULD_NOT_ANSWER = "The model could not answer"
UNREACHED = "its provider cannot be reached"
INCOMPLETE = "what its provider sent is not a complete answer"
CUT_OFF = "the connection to its provider was cut off"
ENDED_EARLY = "the provider's answer ended early"
NO_URL = "its provider's address is not a URL (check base_url: http:// or https://, and a host)"
NO_HEADER = "its API key or a header cannot be sent (check for line breaks and for letters beyond ASCII)"
_ADVICE: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: " (check its API key)",
    HTTPStatus.FORBIDDEN: " (check what its API key may use)",
    HTTPStatus.NOT_FOUND: " (check the model's name and the provider's address)",
    HTTPStatus.TOO_MANY_REQUESTS: " (try again later)",
}
_OF_A_SERVER = " (try again later)"
_OF_A_REDIRECT = " (check its address: the answer redirects to another one, which is not followed)"
_OF_IMAGES = " (send no images: the model takes none, so declare `vision: false` for it)"
_NO_IMAGES = (
    re.compile(r"\b(?:image|vision|multimodal)", re.IGNORECASE),
    re.compile(r"not support|\bunsupported|\bmissing data", re.IGNORECASE),
)
"""Words of model servers (llama.cpp, Ollama) about an image that their model cannot take, sent with status 500."""
_LONGEST = 200
_MESSAGES = ("message", "error", "detail", "errors")
_MOST_CAUSES = 50
_REFUSED = f"[Errno {errno.ECONNREFUSED}]"  # several addresses were tried, and asyncio keeps only the text of each
_CUT = (httpx2.NetworkError, httpx2.RemoteProtocolError, ConnectionError, EOFError)
_CLOSED = ("ServerDisconnectedError",)  # of aiohttp
_NO_URL = ("UnsupportedProtocol", "InvalidUrlClientError", "NonHttpUrlClientError")
_IN_HEADERS = "detected in headers"
"""Part of aiohttp's message; other clients fail earlier, when they encode headers as ASCII."""
_EMPTY = ("EmptyStreamError", "EmptyCompletionError")
_OF_JITER = re.compile(r" at line \d+ column \d+$")
"""The end of the message of pydantic's JSON parser, whose errors have no type of their own."""
_CLOSES = frozenset({1000, 1001})
"""Codes with which a WebSocket is closed on purpose, RFC 6455 section 7.4.1."""
_CLOSE_REASON = "received_close_reason="
_AFTER_CLOSE_REASON = re.compile(r"; (?:sent_close_code|close_order|ws_exception)=")
_WEB_PAGE = re.compile(r"<(?:!doctype|html)", re.IGNORECASE)
"""The beginning of a proxy's error page; only the status before it is shown."""
OF_TENSORZERO = "tensorzero::function_name::"
"""fast-agent's prefix of model names at TensorZero; elsewhere it uses the name alone."""


def explain(llm: Any, error: Exception, default: str) -> CallFailedError:
    """The failure of a turn of `llm`; `default` is the reason if no better one is found."""
    own = _own(list(_causes(error)))
    model = llm.default_request_params.model or llm.model_name or ""
    text = sentence(llm.provider.config_name, model, why_failed(error) or default)
    return CallFailedError(text, reason=own.reason if own is not None else "llm_error")


def sentence(provider: str, model: str, why: str) -> str:
    """`why` with the names of the provider and its model, as in configurations, before it."""
    return f"{provider}.{model.removeprefix(OF_TENSORZERO)}: {why}"


def why_failed(error: BaseException) -> str | None:
    """Return the reason of a failed request; None if neither the provider nor the connection gives one."""
    causes = list(_causes(error))
    if (why := _why_not_sent(causes)) is not None:
        return why
    if (own := _own(causes)) is not None:
        return _of_the_gateway(own)
    said = _plain(provider_words(error))
    if (status := _status_of(causes)) is not None:
        return _answered(status, said or _of_a_socket(causes))
    if any(map(_is_unreadable, causes)):
        return INCOMPLETE
    if (why := said or _of_a_socket(causes)) is not None:
        return reported(why)
    return connection_words(error) or _of_a_closed_socket(causes)


def _is_unreadable(cause: BaseException) -> bool:
    """Return True if the failure is an answer that is empty, or not JSON, or not UTF-8."""
    return (
        isinstance(cause, (json.JSONDecodeError, UnicodeError, RecursionError))
        or type(cause).__name__ in _EMPTY
        or (type(cause) is ValueError and _OF_JITER.search(str(cause)) is not None)
    )


def _why_not_sent(causes: list[BaseException]) -> str | None:
    """The reason for a request that its client refuses to send."""
    if any(type(cause).__name__ in _NO_URL for cause in causes):
        return NO_URL
    is_ascii = any(isinstance(cause, UnicodeEncodeError) and cause.encoding == "ascii" for cause in causes)
    return NO_HEADER if is_ascii or any(_IN_HEADERS in str(cause) for cause in causes) else None


def reported(message: str | None) -> str:
    """The reason for a failure that a provider reports within its answer."""
    return f"its provider reported: {_plain(message) or 'an error without a message'}"


def ended_early() -> CallFailedError:
    """The failure of a turn whose answer has no last event."""
    return CallFailedError(ENDED_EARLY, reason="llm_error")


def incomplete() -> CallFailedError:
    """The failure of a turn that received no readable event."""
    return CallFailedError(INCOMPLETE, reason="llm_error")


def too_long() -> CallFailedError:
    """The failure of a turn whose answer is longer than any model's."""
    return CallFailedError(
        f"its provider sent more than {LARGEST_ANSWER_BYTES // 2**20} MB in one answer", reason="llm_error"
    )


def _own(causes: list[BaseException]) -> CallFailedError | None:
    return next((cause for cause in causes if isinstance(cause, CallFailedError)), None)


def _of_the_gateway(error: CallFailedError) -> str:
    if (status := _status_of([error])) is not None:
        return _answered(status, _plain(str(error)))
    return (connection_words(error) if str(error) == UNREACHED else None) or str(error)


def _status_of(causes: list[BaseException]) -> int | None:
    """The status of an error answer."""
    found = (
        (getattr(cause, "status", None), getattr(cause, "status_code", None), getattr(_googles(cause), "code", None))
        for cause in causes
    )
    numbers = (one for each in found for one in each if isinstance(one, int))
    return next((int(one) for one in numbers if one >= HTTPStatus.MULTIPLE_CHOICES), None)


def provider_words(error: BaseException) -> str | None:
    """The message in the body of an error answer; None if there was no such answer, or it holds no message."""
    for cause in _causes(error):
        for body in _bodies(cause):
            if isinstance(body, (dict, list, str)) and body:
                return _message_in(body)
    return None


def connection_words(error: BaseException) -> str | None:
    """Return the cause of a failed connection in a few words; None if the error has another cause."""
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return f"{UNREACHED}: TLS error"
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return f"{UNREACHED}: host name not found"
    if any(isinstance(cause, ConnectionRefusedError) or _REFUSED in str(cause) for cause in causes):
        return f"{UNREACHED}: connection refused"
    if any(isinstance(cause, httpx2.ConnectTimeout) for cause in causes):
        # The libraries' transport on aiohttp raises this also for a connection that the server has closed.
        is_cut = any(isinstance(cause, ConnectionError) or type(cause).__name__ in _CLOSED for cause in causes)
        return CUT_OFF if is_cut else f"{UNREACHED}: no connection in time"
    if any(isinstance(cause, httpx2.ConnectError) for cause in causes):
        return UNREACHED
    return CUT_OFF if any(isinstance(cause, _CUT) for cause in causes) else None


def _answered(status: int, said: str | None) -> str:
    return f"its provider answered {status}{_advice_on(status, said or '')}" + (f": {said}" if said else "")


def _advice_on(status: int, said: str) -> str:
    if status < HTTPStatus.BAD_REQUEST:
        return _OF_A_REDIRECT
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and all(word.search(said) for word in _NO_IMAGES):
        return _OF_IMAGES
    return _ADVICE.get(status, _OF_A_SERVER if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "")


def _plain(said: str | None) -> str | None:
    """The text on one line, without the error page of a proxy."""
    if said is None:
        return None
    return shortened(" ".join(_WEB_PAGE.split(said, maxsplit=1)[0].split()), _LONGEST) or None


def _of_a_socket(causes: list[BaseException]) -> str | None:
    """The message of an error that the provider sent through a WebSocket."""
    error = _socket_error(causes)
    is_sent = error is not None and error.close_snapshot is None and error.__cause__ is None
    return _plain(str(error)) if is_sent else None


def _of_a_closed_socket(causes: list[BaseException]) -> str | None:
    """The reason of the provider that closed a WebSocket, without the statistics that fast-agent adds."""
    if (error := _socket_error(causes)) is None or error.close_snapshot is None:
        return None
    _, is_given, rest = str(error).partition(_CLOSE_REASON)
    if is_given:
        return f"its provider closed the connection: {_plain(_AFTER_CLOSE_REASON.split(rest)[0])}"
    return ENDED_EARLY if error.close_snapshot["close_code"] in _CLOSES else CUT_OFF


def _socket_error(causes: list[BaseException]) -> Any:
    return next((cause for cause in causes if type(cause).__name__ == "ResponsesWebSocketError"), None)


def _bodies(cause: BaseException) -> Iterator[Any]:
    yield getattr(cause, "body", None)  # of OpenAI's and Anthropic's exceptions
    yield getattr(_googles(cause), "details", None)
    refused = getattr(getattr(cause, "response", None), "body", None)  # the handshake of a WebSocket
    if isinstance(refused, bytes):
        try:
            yield json.loads(refused)
        except ValueError:
            yield refused.decode(errors="replace")


def _googles(cause: BaseException) -> BaseException | None:
    """The exception if Google's library raised it; others have attributes with the same names."""
    return cause if isinstance(getattr(cause, "details", None), (dict, list)) else None


def _message_in(body: Any) -> str | None:
    if isinstance(body, str):
        return body.strip() or None
    if isinstance(body, list):
        return _message_in(body[0]) if body else None
    if not isinstance(body, dict):
        return None
    named = [body[name] for name in _MESSAGES if name in body]
    return next(filter(None, map(_message_in, named)), None) if named else json.dumps(body, default=str)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, its causes, and the members of groups."""
    waiting: list[BaseException | None] = [error]
    seen: list[BaseException] = []
    while waiting and len(seen) < _MOST_CAUSES:
        cause = waiting.pop(0)
        if cause is None or cause in seen:
            continue
        seen.append(cause)
        yield cause
        waiting += [cause.__cause__ or cause.__context__, *getattr(cause, "exceptions", ())]
