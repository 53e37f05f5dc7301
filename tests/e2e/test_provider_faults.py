"""Calls whose provider of models fails, in its own wire format."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import anthropic
import openai
import pytest

from pallas_gateway.calls.provider_failures import CUT_OFF, INCOMPLETE, UNREACHED
from pallas_gateway.limits import LlmLimits
from tests.e2e.provider_matrix import (
    ANTHROPIC,
    BEDROCK,
    GEMINI,
    GENERIC,
    RESPONSES,
    in_shared_gateways,
    over_providers,
)
from tests.e2e.providers import Provider, deltas_of, serving
from tests.support.calling import Answer, answer_of, ask
from tests.support.listener import reserved_port
from tests.support.scripted_llm import Reply, cut, end_early, error_event, garbage, hang, say, stream
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.e2e.providers import Served
    from tests.support.gateway import Limits
    from tests.support.scripted_llm import LlmRequest, Turn

pytestmark = pytest.mark.asyncio(loop_scope="module")
SOON: Mapping[str, str] = {"retry_after": "0.01"}
REPEATED = "LLM request repeated"


def repeats(caplog: pytest.LogCaptureFixture) -> int:
    return [record.message for record in caplog.records].count(REPEATED)


@in_shared_gateways("early end")
async def test_an_answer_without_its_end_is_a_failure(shared: Served) -> None:
    async with shared.playing([end_early(["Once ", "upon "])]) as served, served.in_flight() as call:
        answer = answer_of(await call.reply())

    text, reason = failure(answer)
    assert text.endswith(": the provider's answer ended early")
    assert (reason, served.outcomes) == ("llm_error", (0, 1))
    assert "".join(deltas_of(call)) == "Once upon "


@in_shared_gateways("cut")
async def test_a_connection_cut_off_within_an_answer_is_a_failure(shared: Served) -> None:
    async with shared.playing([cut()]) as served:
        answer = await ask(served.url)

    text, reason = failure(answer)
    assert (reason, served.outcomes) == ("llm_error", (0, 1))
    assert text.endswith(f": {CUT_OFF}")


@in_shared_gateways("error event")
async def test_an_error_within_an_answer_is_a_failure(shared: Served) -> None:
    async with shared.playing([error_event(f"too many for {shared.provider.key}")]) as served:
        answer = await ask(served.url)

    text, reason = failure(answer)
    assert (reason, served.outcomes) == ("llm_error", (0, 1))
    assert "too many for" in text
    assert shared.provider.key not in text


@in_shared_gateways("retries")
@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_that_may_pass_is_repeated(
    shared: Served, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    def script(request: LlmRequest) -> Turn:
        return shared.llm.refuse(status, **SOON) if request.number < 3 else say("At last.")

    async with shared.playing(script) as served, served.in_flight() as call:
        answer = answer_of(await call.reply())

    assert (answer.text, len(served.llm.requests), repeats(caplog)) == ("At last.", 3, 2)
    model = shared.provider.wire_model
    assert (served.outcomes, served.counted("pallas_llm_turns_total", agent="solo", model=model)) == ((1, 0), 1)
    steps = [one["params"]["message"] for one in call.notifications if one["method"] == "notifications/progress"]
    assert steps == ["solo step 1 (llm)"] * 3


@in_shared_gateways("attempts")
async def test_no_more_than_three_requests_are_sent(shared: Served) -> None:
    async with shared.playing(lambda _: shared.llm.refuse(429, "slow down", **SOON)) as served:
        answer = await ask(served.url)

    text, reason = failure(answer)
    assert (reason, len(served.llm.requests), served.outcomes) == ("llm_error", 3, (0, 1))
    assert "slow down" in text


@pytest.mark.parametrize("provider", [GEMINI, BEDROCK], ids=str)
async def test_a_provider_that_wants_a_long_pause_is_not_asked_again(provider: Provider, tmp_path: Path) -> None:
    async with serving(tmp_path, provider, lambda _: served.llm.refuse(429, retry_after="3600")) as served:
        answer = await ask(served.url)

    assert (answer.is_error, len(served.llm.requests)) == (True, 1)


@in_shared_gateways("wrong key")
async def test_a_wrong_key_is_said_at_once_and_not_shown(shared: Served) -> None:
    async with shared.playing(lambda _: shared.llm.refuse(401, f"wrong key {shared.provider.key}")) as served:
        answer = await ask(served.url)

    text, reason = failure(answer)
    assert (reason, len(served.llm.requests), served.outcomes) == ("llm_error", 1, (0, 1))
    assert "its provider answered 401 (check its API key): wrong key" in text
    assert shared.provider.key not in text


@over_providers("refused")
async def test_a_refused_connection_is_repeated(
    provider: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture, hasty: None
) -> None:
    caplog.set_level(logging.WARNING, logger="pallas.runtime")
    with reserved_port() as port:
        elsewhere = addressed(provider, port)
        async with serving(tmp_path, elsewhere, []) as served:
            answer = await ask(served.url)
            assert served.outcomes == (0, 1)

    text, reason = failure(answer)
    assert (reason, repeats(caplog)) == ("llm_error", 2)
    assert text.endswith(f"{provider.name.partition(' ')[0]}.{provider.wire_model}: {UNREACHED}: connection refused")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    """Requests are repeated at once: how long the waits are is tried elsewhere."""
    for library in (openai._base_client, anthropic._base_client):
        monkeypatch.setattr(library, "INITIAL_RETRY_DELAY", 0.01)
    limits.runtime.llm = LlmLimits(first_wait_seconds=0.01)


def addressed(provider: Provider, port: int) -> Provider:
    """The provider at another address."""
    url = f"http://127.0.0.1:{port}"
    texts = provider.config, provider.environ
    config, environ = ({name: value.replace("{url}", url) for name, value in some.items()} for some in texts)
    return replace(provider, config=config, environ=environ)


@in_shared_gateways("garbage")
async def test_garbage_is_a_failure(shared: Served) -> None:
    async with shared.playing(lambda _: garbage()) as served:
        answer = await ask(served.url)

    text, reason = failure(answer)
    assert text.endswith(f": {INCOMPLETE}")
    assert (reason, served.outcomes) == ("llm_error", (0, 1))


@in_shared_gateways("silence")
async def test_a_silent_model_is_a_timeout(shared: Served) -> None:
    gate = Gate()
    async with shared.playing(lambda _: hang(gate)) as served:
        answer = await ask(served.gateway.url("impatient"))

    text, reason = failure(answer)
    assert text.endswith(": its provider sent nothing for 0.5 s")
    assert (reason, len(served.llm.requests), served.outcomes) == ("llm_timeout", 1, (0, 1))


@in_shared_gateways("silence")
async def test_a_model_that_falls_silent_is_a_timeout(shared: Served) -> None:
    gate = Gate()
    async with (
        shared.playing([stream(["Once ", "upon."], gate)]) as served,
        served.in_flight(agent="impatient") as call,
    ):
        answer = answer_of(await call.reply())

    text, reason = failure(answer)
    assert text.endswith(": its provider sent nothing for 0.5 s")
    assert (reason, served.outcomes) == ("llm_timeout", (0, 1))
    assert deltas_of(call) == ["Once "]


@in_shared_gateways("silence", [GENERIC, RESPONSES, ANTHROPIC])
async def test_a_model_that_sends_only_pings_is_a_timeout(shared: Served) -> None:
    async with shared.playing(lambda _: Reply(200, b"", "text/event-stream", pings=b": ping\n\n")) as served:
        answer = await ask(served.gateway.url("impatient"))

    text, reason = failure(answer)
    assert text.endswith(": its provider sent nothing for 0.5 s")
    assert (reason, served.outcomes) == ("llm_timeout", (0, 1))


@over_providers("refused")
async def test_a_server_that_closes_each_connection_is_said_to_cut_it_off(
    provider: Provider, tmp_path: Path, hasty: None
) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server, serving(tmp_path, addressed(provider, server.sockets[0].getsockname()[1]), []) as served:
        answer = await ask(served.url)

    text, reason = failure(answer)
    assert (text.partition(": ")[2].partition(": ")[2], reason) == (CUT_OFF, "llm_error")


def failure(answer: Answer) -> tuple[str, str]:
    assert answer.is_error, answer
    return answer.text, answer.meta["stop_reason"]
