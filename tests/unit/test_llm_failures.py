"""What is said of a model that did not answer: its provider's own words, or why there was no connection."""

from __future__ import annotations

import json
import socket
import ssl
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from fast_agent.llm.provider.error_utils import build_stream_failure_response
from google.genai import errors as google

from pallas_gateway.runtime.failures import one_line
from pallas_gateway.runtime.llm_failures import connection_words, explain_failures_of, provider_words

REQUEST = httpx2.Request("POST", "http://127.0.0.1:1/v1")


def answered(library: Any, body: object) -> Exception:
    """The exception that a library makes of an error answer."""
    client = library(api_key="not-a-key", base_url="http://127.0.0.1:1")
    response = httpx2.Response(400, request=REQUEST, content=json.dumps(body).encode())
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
    ({"code": 7, "ok": False}, '{"code": 7, "ok": false}'),
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


def test_causes_that_are_a_circle_are_survived() -> None:
    error = ValueError("any")
    error.__context__ = other = ValueError("other")
    other.__context__ = error
    assert connection_words(error) is None


def test_a_module_is_explained_once() -> None:
    module: Any = SimpleNamespace(build_stream_failure_response=build_stream_failure_response)
    explain_failures_of(module)
    explained = module.build_stream_failure_response
    explain_failures_of(module)
    assert module.build_stream_failure_response is explained
    reply = explained("generic", answered(openai.AsyncOpenAI, BODIES[0][0]), "m")
    assert reply.channels["fast-agent-error"][0].text.endswith("for model 'm' (status=400): no such model")


def test_a_module_without_such_failures_stays_as_it_is() -> None:
    module: Any = SimpleNamespace()
    explain_failures_of(module)
    assert vars(module) == {}
