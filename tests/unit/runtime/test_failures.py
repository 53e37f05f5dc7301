"""What is said of a model that did not answer: its provider's own words, or why there was no connection."""

import json
import socket
import ssl
from collections import deque
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from aiohttp.http_exceptions import BadHttpMessage
from fast_agent.llm.provider.error_utils import EmptyCompletionError
from fast_agent.llm.provider.openai.responses_websocket import ResponsesWebSocketError
from google.genai import errors as google
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, ListToolsResult
from pydantic import ValidationError

from pallas_gateway.calls.provider_failures import (
    connection_words,
    explain,
    provider_words,
    why_failed,
)
from pallas_gateway.errors import CallFailedError, ProviderError
from pallas_gateway.runtime.failures import one_line

REQUEST = httpx2.Request("POST", "http://127.0.0.1:1/v1")


def answered(library: Any, body: object, status: int = 400) -> Exception:
    """The exception that a library makes of an error answer."""
    client = library(api_key="not-a-key", base_url="http://127.0.0.1:1")
    response = httpx2.Response(status, request=REQUEST, content=json.dumps(body).encode())
    made: Exception = client._make_status_error_from_response(response)
    return made


def raised(error: Exception, *causes: Exception) -> Exception:
    """The first, raised from the second, and so on."""
    for outer, inner in zip((error, *causes), causes, strict=False):
        outer.__cause__ = inner
    return error


BODIES = [
    ({"error": {"message": "no such model", "type": "invalid"}}, "no such model"),
    ({"error": "no such model"}, "no such model"),
    ({"message": "no such model"}, "no such model"),
    ({"detail": "no such model"}, "no such model"),
    ([{"error": {"code": 400, "message": "no such model"}}], "no such model"),
    ({"detail": [{"message": 'it\'s "quoted"'}]}, 'it\'s "quoted"'),
    ({"code": 7, "ok": False}, '{"code": 7, "ok": false}'),  # no message that could be found
]


@pytest.mark.parametrize("library", [openai.AsyncOpenAI, anthropic.AsyncAnthropic])
@pytest.mark.parametrize(("body", "words"), BODIES)
def test_an_error_answer_is_told_in_its_own_words(library: Any, body: object, words: str) -> None:
    error = answered(library, body)
    assert provider_words(error) == words
    assert one_line(error) == words


def test_googles_error_answer_is_told_in_its_own_words() -> None:
    error = google.ClientError(400, {"error": {"message": "no such model", "status": "INVALID"}})
    assert one_line(error) == "no such model"


def test_what_does_not_fit_is_told_with_its_place() -> None:
    with pytest.raises(ValidationError) as caught:
        ListToolsResult.model_validate({"tools": [{"name": "a", "inputSchema": 3}]})
    assert one_line(caught.value) == "ListToolsResult: in tools.0.inputSchema, Input should be a valid dictionary"


def test_the_refusal_of_an_earlier_request_is_not_the_reason() -> None:
    error = ExceptionGroup("unhandled", [refused := MCPError(0, "HTTP 502 Bad Gateway")])
    refused.__context__ = MCPError(METHOD_NOT_FOUND, "Method not found")
    assert one_line(error) == "HTTP 502 Bad Gateway"


@pytest.mark.parametrize(("cause", "reason"), [(None, "closed"), (ConnectionResetError("reset"), "reset")])
def test_a_hidden_context_is_not_the_reason(cause: Exception | None, reason: str) -> None:
    """As anyio raises the error of a connection that was reset, while it handles an empty queue."""
    try:
        deque[int]().popleft()
    except IndexError as error:
        closed = ConnectionError("closed")
        closed.__context__, closed.__cause__ = error, cause
    assert one_line(closed) == reason


def test_an_error_without_an_answer_has_no_words_of_a_provider() -> None:
    assert provider_words(openai.APITimeoutError(request=REQUEST)) is None
    assert provider_words(ValueError("any")) is None


CONNECTIONS = [
    (ConnectionRefusedError(111, "Connect call failed"), "connection refused"),
    (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] …"), "connection refused"),
    (socket.gaierror(-2, "Name or service not known"), "host name not found"),
    (ssl.SSLCertVerificationError(1, "certificate verify failed"), "TLS error"),
    (ExceptionGroup("all", [OSError("one"), ConnectionRefusedError(111, "Connect call failed")]), "connection refused"),
]


@pytest.mark.parametrize(("cause", "why"), CONNECTIONS)
def test_a_connection_that_failed_is_told_by_its_cause(cause: Exception, why: str) -> None:
    error = raised(openai.APITimeoutError(request=REQUEST), httpx2.ConnectTimeout("Cannot connect"), cause)
    assert connection_words(error) == f"its provider cannot be reached: {why}"


def test_a_provider_that_takes_too_long_is_no_failed_connection() -> None:
    error = raised(openai.APITimeoutError(request=REQUEST), httpx2.ReadTimeout("too long"), TimeoutError())
    assert connection_words(error) is None
    assert why_failed(error) is None


UNREACHED = "its provider cannot be reached"
CUT_OFF = "the connection to its provider was cut off"
OTHERS = [
    (httpx2.ConnectTimeout("…"), f"{UNREACHED}: no connection in time"),
    (httpx2.ConnectError("All connection attempts failed"), UNREACHED),
    (httpx2.RemoteProtocolError("peer closed connection"), CUT_OFF),
    (ConnectionResetError(104, "reset"), CUT_OFF),
    (json.JSONDecodeError("…", "{", 0), "what its provider sent is not a complete answer"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "…"), "what its provider sent is not a complete answer"),
    (RecursionError("…"), "what its provider sent is not a complete answer"),
    (ValueError("recursion limit exceeded at line 1 column 1006"), "what its provider sent is not a complete answer"),
    (EmptyCompletionError(), "what its provider sent is not a complete answer"),
    (raised(CallFailedError(UNREACHED), ConnectionRefusedError(111, "…")), f"{UNREACHED}: connection refused"),
    (CallFailedError(UNREACHED), UNREACHED),
    (answered(openai.AsyncOpenAI, {"error": {"message": "a\nb"}}), "its provider answered 400: a b"),
    (answered(openai.AsyncOpenAI, {"error": {"message": ""}}), "its provider answered 400"),
    (
        ProviderError("307", status=307),
        "its provider answered 307 (check its address: the answer redirects to another one, which is not "
        "followed): 307",
    ),
    (raised(RuntimeError("Transfer-Encoding"), BadHttpMessage("…")), None),
    (ValueError("any"), None),
]


@pytest.mark.parametrize(("error", "why"), OTHERS, ids=lambda one: type(one).__name__)
def test_a_failure_is_reported_by_its_kind(error: Exception, why: str | None) -> None:
    assert why_failed(error) == why


@pytest.mark.parametrize(
    ("said", "is_of_images"),
    [
        ("image input is not supported - hint: if this is unexpected, you may need to provide the mmproj", True),
        ("Failed to create new sequence: this model is missing data required for image input", True),
        ("This server does not support images", True),
        ("multimodal input unsupported", True),
        ("loading the image processor failed", False),
        ("model is loading, which is not supported", False),
    ],
)
@pytest.mark.parametrize("status", [500, 501])
def test_an_image_that_a_model_server_cannot_take_is_no_reason_to_try_again(
    status: int, said: str, is_of_images: bool
) -> None:
    why = why_failed(answered(openai.AsyncOpenAI, {"error": {"code": status, "message": said}}, status))
    of_images = "send no images: the model takes none, so declare `vision: false` for it"
    advice = of_images if is_of_images else "try again later"
    assert why == f"its provider answered {status} ({advice}): {said}"


def closed(code: int, *, why: str = "") -> Exception:
    """The error of fast-agent for a WebSocket that was closed within an answer."""
    given = f"received_close_reason={why}; " if why else ""
    statistics = f"received_close_code={code}; {given}sent_close_code={code}; ws_exception=ConnectionClosed; frames=[a]"
    error = ResponsesWebSocketError(f"WebSocket stream closed before completion event ({statistics})")
    error.close_snapshot = {"close_code": code}
    return error


SOCKETS = [
    (closed(1000), "the provider's answer ended early"),
    (closed(1011), CUT_OFF),
    (closed(1008, why="(a) not; allowed"), "its provider closed the connection: (a) not; allowed"),
    (ResponsesWebSocketError("over (the) quota"), "its provider reported: over (the) quota"),
    (ResponsesWebSocketError("slow down", status=429), "its provider answered 429 (try again later): slow down"),
    (raised(ResponsesWebSocketError("Received non-JSON"), json.JSONDecodeError("…", "{", 0)), "what its provider sent"),
    (raised(ResponsesWebSocketError("…"), ConnectionResetError(104, "reset")), CUT_OFF),
]


@pytest.mark.parametrize(("error", "why"), SOCKETS, ids=lambda one: str(one)[:20])
def test_the_statistics_of_a_websocket_are_no_reason(error: Exception, why: str) -> None:
    assert (why_failed(error) or "").startswith(why)


@pytest.mark.parametrize(("body", "words"), [(b'{"error": {"message": "no"}}', "no"), (b"no", "no")])
def test_a_refused_handshake_is_reported_by_its_body(body: bytes, words: str) -> None:
    response = SimpleNamespace(status_code=403, body=body)
    refused: Any = ValueError("HTTP 403")
    refused.response = response
    error = raised(ResponsesWebSocketError("server rejected: HTTP 403", status=403), refused)
    assert why_failed(error) == f"its provider answered 403 (check what its API key may use): {words}"


LLM = SimpleNamespace(
    provider=SimpleNamespace(config_name="generic"), default_request_params=SimpleNamespace(model="m"), model_name=None
)


def test_a_failure_keeps_its_kind_and_names_the_model() -> None:
    silent = explain(LLM, CallFailedError("its provider sent nothing for 1 s", reason="llm_timeout"), "")
    assert (silent.reason, str(silent)) == ("llm_timeout", "generic.m: its provider sent nothing for 1 s")
    other = explain(LLM, ValueError("any"), "any")
    assert (other.reason, str(other)) == ("llm_error", "generic.m: any")


def test_causes_that_are_a_circle_are_survived() -> None:
    error = ValueError("any")
    error.__context__ = other = ValueError("other")
    other.__context__ = error
    assert connection_words(error) is None
