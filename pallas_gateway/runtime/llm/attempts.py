"""Repeated requests of LLM turns, and the failure of the last one.

OpenAI's and Anthropic's libraries repeat failed requests themselves; here that is logged. For other providers the
gateway sends up to three requests, after temporary failures, and only before the first piece of an answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from time import monotonic, time
from typing import Any

import httpx2
from fast_agent.core.exceptions import walk_exception_chain

from pallas_gateway.calls.current import LlmTurn, calling, running_call, say_repeated
from pallas_gateway.calls.provider_failures import explain, why_failed
from pallas_gateway.changes.change import Fault
from pallas_gateway.errors import CallFailedError
from pallas_gateway.limits import MOST_REQUESTS
from pallas_gateway.runtime.failures import one_line

LONGEST_WAIT_SECONDS = 60.0
"""Longest `Retry-After`, as in OpenAI's and Anthropic's libraries; after a longer one the request is not repeated."""
_REPEATING_LIBRARIES = ("openai", "anthropic")
FAULTS = (
    Fault(
        title="A silent model is a `CancelledError`",
        text="""\
Symptom: a provider that sends nothing for `streaming_timeout` fails the call with `CancelledError`.

Repair: the call fails with `llm_timeout` and the time waited.
""",
        library="fast_agent",
        gone_when=(
            "fast-agent raises one error of its own for both time-outs (`TimeoutError`, and `APITimeoutError` of the"
            " libraries)"
        ),
        test="tests/e2e/test_provider_faults.py",
    ),
    Fault(
        title="Some providers are asked only once",
        text="""\
Symptom: a 429 or a refused connection of Google, Bedrock or a WebSocket of the Responses API fails the call at once.
fast-agent's own `llm_retries` waits for 10 s and more, and ignores `Retry-After`.

Repair: a turn sends up to three requests ([retries](operate/providers-at-work.md#requests-that-are-repeated)).
""",
        library="fast_agent",
        gone_when=(
            "fast-agent's retries honour `Retry-After`, leave out what libraries have repeated, and stop after the"
            " first piece of an answer"
        ),
        test="tests/unit/runtime/llm/test_attempts.py",
    ),
)
_PASSING = frozenset({408, 409, 429})


async def run_turn(
    llm: Any, func: Callable[..., Awaitable[Any]], execute: Callable[[Callable[..., Awaitable[Any]]], Awaitable[Any]]
) -> Any:
    """Run a turn of a model by `execute`, fast-agent's method, with repeats of the request that `func` makes."""

    async def attempts(*given: Any, **more: Any) -> Any:
        patience = next((limit for one in given if (limit := getattr(one, "streaming_timeout", None))), None)
        turn = _turn_of(llm, patience)
        with calling(replace(running_call.get(), turn=turn)):
            return await _answer(llm, turn, lambda: func(*given, **more))

    try:
        return await execute(attempts)
    except Exception as error:
        raise explain(llm, error, one_line(error)) from error


def _turn_of(llm: Any, patience: float | None) -> LlmTurn:
    """The turn of an LLM, for the observer of its call; `patience` is by fast-agent's settings."""
    call = running_call.get()

    def on_repeat() -> None:
        if call.on_llm_repeat is not None and (hear := call.on_llm_repeat()) is not None:
            hear(llm)

    def reading_pause() -> float | None:
        pause_of = call.reading_pause() if call.reading_pause is not None else None
        return pause_of(llm) if pause_of is not None else 0.0

    provider = getattr(llm.provider, "config_name", None)
    return LlmTurn(provider=provider, patience=patience, on_repeat=on_repeat, reading_pause=reading_pause)


async def _answer(llm: Any, turn: LlmTurn, ask: Callable[[], Awaitable[Any]]) -> Any:
    """Send requests by `ask` until one is answered; return the answer.

    Raises:
        CallFailedError: `llm_timeout`; the provider was silent.
        Exception: the error of the last request.
    """
    has_begun = False

    def hear(chunk: Any) -> None:
        nonlocal has_begun
        has_begun = has_begun or bool(chunk.text)

    def hear_of_tool(*_: object) -> None:
        nonlocal has_begun
        has_begun = True

    forget = (llm.add_stream_listener(hear), llm.add_tool_stream_listener(hear_of_tool))
    try:
        for attempt in range(1, MOST_REQUESTS + 1):
            began = monotonic()
            turn.is_answered, turn.failure = False, None
            try:
                return await ask()
            except Exception as error:
                if _is_silence(error):
                    seconds = turn.patience or monotonic() - began
                    message = f"its provider sent nothing for {seconds:.3g} s"
                    raise CallFailedError(message, reason="llm_timeout") from error
                # With `llm_retries`, fast-agent repeats the turn.
                is_last = max(attempt, turn.sent) >= MOST_REQUESTS or has_begun or llm.retry_count > 0
                wait = None if is_last else wait_after(error, attempt)
                if wait is None:
                    raise
                say_repeated(why_failed(error) or one_line(error), attempt)
            await asyncio.sleep(wait)
    finally:
        for one in forget:
            one()
    raise AssertionError  # the last attempt returns or raises


def wait_after(error: BaseException, attempt: int) -> float | None:
    """Seconds to wait before the request is sent again; None if it is not, or if its library repeats requests."""
    chain = list(walk_exception_chain(error))
    if _is_from_repeating_library(chain):
        return None
    status, headers = _status_of(chain)
    if status is None:
        return _backoff(attempt) if is_unreached(error) else None
    if status not in _PASSING and status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return None
    return _asked_for(headers["retry-after"], attempt) if "retry-after" in headers else _backoff(attempt)


def _status_of(chain: list[BaseException]) -> tuple[int | None, Mapping[str, str]]:
    for error in chain:
        status = next((got for name in ("status", "code") if type(got := getattr(error, name, None)) is int), None)
        if status is not None:
            headers = getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None)
            return status, {name.lower(): value for name, value in (headers or {}).items()}
    return None, {}


def _asked_for(retry_after: str, attempt: int) -> float | None:
    """Read `Retry-After`, which has seconds or a date (RFC 9110 section 10.2.3)."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time()
        except ValueError:
            return _backoff(attempt)
    return max(seconds, 0.0) if seconds <= LONGEST_WAIT_SECONDS else None


def _backoff(attempt: int) -> float:
    wait: float = running_call.get().llm_limits.first_wait_seconds * 2 ** (attempt - 1)
    return wait * random.uniform(0.75, 1)  # noqa: S311  not for cryptography


def is_unreached(error: BaseException) -> bool:
    """Return True if no connection was made, except in libraries that repeat requests: their messages report it."""
    chain = list(walk_exception_chain(error))
    refused = (ConnectionRefusedError, httpx2.ConnectError, httpx2.ConnectTimeout)
    return not _is_from_repeating_library(chain) and any(
        isinstance(one, refused) or getattr(one, "is_unreached", False) for one in chain
    )


def _is_from_repeating_library(chain: list[BaseException]) -> bool:
    """Return True if a repeating library sent the last request; for WebSockets, fast-agent switches repeats off."""
    for error in chain:
        if type(error).__name__ == "ResponsesWebSocketError":
            return False
        if type(error).__module__.partition(".")[0] in _REPEATING_LIBRARIES:
            return True
    return False


def _is_silence(error: BaseException) -> bool:
    """Return True if a provider did not answer in time; not if the connection was not made in time."""
    chain = list(walk_exception_chain(error))
    if any(isinstance(one, httpx2.ConnectTimeout) for one in chain):
        return False
    return any(isinstance(one, (TimeoutError, httpx2.ReadTimeout)) for one in chain)
