"""Which failures of a provider are worth another request, and after how long."""

from typing import Any

import httpx2
import openai
import pytest
from fast_agent.core.exceptions import ProviderKeyError
from google.genai.errors import APIError

from pallas_gateway.errors import ProviderError
from pallas_gateway.runtime.llm.attempts import is_unreached, wait_after


def caused_by(cause: BaseException, error: BaseException | None = None) -> BaseException:
    """`error`, raised from `cause`."""
    outer = error or RuntimeError("around it")
    outer.__cause__ = cause
    return outer


def google(status: int, **headers: str) -> BaseException:
    """The error that fast-agent's class for Google raises."""
    response = httpx2.Response(status, headers=headers)
    return caused_by(APIError(status, {"error": {}}, response), ProviderKeyError("Google API Error"))


REQUEST = httpx2.Request("POST", "http://127.0.0.1")


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 529])
def test_what_may_pass_is_tried_again(status: int) -> None:
    assert 0.37 <= (wait_after(ProviderError("no", status=status), 1) or 0) <= 0.5
    assert 0.75 <= (wait_after(google(status), 2) or 0) <= 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_what_stays_is_not(status: int) -> None:
    assert wait_after(google(status), 1) is None


@pytest.mark.parametrize(
    ("asked", "waited"),
    [
        ("0", 0),
        ("1.5", 1.5),
        ("60", 60),
        ("61", None),
        ("inf", None),
        ("nan", None),
        ("-1", 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Wed, 21 Oct 2915 07:28:00 GMT", None),
    ],
)
def test_the_provider_says_how_long(asked: str, waited: float | None) -> None:
    assert wait_after(google(429, **{"Retry-After": asked}), 1) == waited


def test_a_wait_that_is_neither_seconds_nor_a_date_is_ignored() -> None:
    assert 0.37 <= (wait_after(google(429, **{"Retry-After": "soon"}), 1) or 0) <= 0.5


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        httpx2.ConnectError("refused"),
        httpx2.ConnectTimeout("slow"),
        ProviderError("no", is_unreached=True),
    ],
)
def test_a_connection_that_was_not_made_is_tried_again(error: Exception) -> None:
    assert is_unreached(caused_by(error))
    assert wait_after(caused_by(error), 1) is not None


@pytest.mark.parametrize("error", [ValueError("bad"), httpx2.ReadError("cut"), ProviderError("no")])
def test_anything_else_is_not(error: Exception) -> None:
    assert wait_after(caused_by(error), 1) is None


@pytest.mark.parametrize(
    "error",
    [
        openai.RateLimitError("slow down", response=httpx2.Response(429, request=REQUEST), body=None),
        caused_by(ConnectionRefusedError(), openai.APIConnectionError(request=REQUEST)),
    ],
)
def test_what_a_library_has_repeated_is_not_repeated_here(error: Any) -> None:
    assert wait_after(error, 1) is None
    assert not is_unreached(error)
