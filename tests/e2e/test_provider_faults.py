"""Calls whose provider of models fails, redirects, or cannot be asked, in its own wire format."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from pallas_gateway.calls.provider_failures import CUT_OFF, INCOMPLETE, NO_HEADER, NO_URL, UNREACHED
from tests.support.calling import Answer, answer_of, ask, health
from tests.support.clients import RawCall
from tests.support.fair_time import hastened
from tests.support.gateway import Agent, running, write_project
from tests.support.listener import reserved_port
from tests.support.provider_gateways import KEY, Provider, Served, deltas_of, serving
from tests.support.provider_matrix import (
    ANTHROPIC,
    AZURE,
    BEDROCK,
    CHAT,
    GEMINI,
    GEMINI_VERTEX,
    GENERIC,
    RESPONSES,
    WEBSOCKET,
    in_shared_gateways,
    over_providers,
)
from tests.support.providers.provider import scripted_provider
from tests.support.scripted_llm import (
    LlmRequest,
    Reply,
    Script,
    Turn,
    cut,
    end_early,
    error_event,
    garbage,
    hang,
    say,
    stream,
)
from tests.support.waiting import Gate

pytestmark = pytest.mark.asyncio(loop_scope="module")
SOON: Mapping[str, str] = {"retry_after": "0.01"}
REPEATED = "LLM request repeated"


def repeats(caplog: pytest.LogCaptureFixture) -> int:
    return [record.message for record in caplog.records].count(REPEATED)


@dataclass(frozen=True)
class Fault:
    """An answer that is none: why the call failed, how many requests were sent, and the live text before it."""

    turn: Callable[[Served], Turn]
    words: str
    requests: int = 1
    text: str = ""
    agent: str = "solo"
    reason: str = "llm_error"

    def script(self, served: Served) -> Script:
        return lambda _: self.turn(served)


SILENT = "its provider sent nothing for {patience} s"
PAGE = Reply(502, b"<html><body>Bad gateway</body></html>", "text/html", {"retry-after": "0.01"})
FAULTS: Mapping[str, Fault] = {
    "ended early": Fault(
        lambda _: end_early(["Once ", "upon "]), "the provider's answer ended early", text="Once upon "
    ),
    "cut off": Fault(lambda _: cut(), CUT_OFF, text="once upon"),
    "reported": Fault(
        lambda served: error_event(f"too many for {served.provider.key}"),
        "its provider reported: too many for ****",
        text="once upon",
    ),
    "400": Fault(lambda served: served.llm.refuse(400, "no such"), "its provider answered 400: no such"),
    "401": Fault(
        lambda served: served.llm.refuse(401, f"wrong key {served.provider.key}"),
        "its provider answered 401 (check its API key): wrong key ****",
    ),
    "403": Fault(
        lambda served: served.llm.refuse(403, "not for you"),
        "its provider answered 403 (check what its API key may use): not for you",
    ),
    "404": Fault(
        lambda served: served.llm.refuse(404, "no such model"),
        "its provider answered 404 (check the model's name and the provider's address): no such model",
    ),
    "429": Fault(
        lambda served: served.llm.refuse(429, "slow down", **SOON),
        "its provider answered 429 (try again later): slow down",
        requests=3,
    ),
    "503": Fault(
        lambda served: served.llm.refuse(503, "overloaded", **SOON),
        "its provider answered 503 (try again later): overloaded",
        requests=3,
    ),
    "a page": Fault(lambda _: PAGE, "its provider answered 502 (try again later)", requests=3),
    "garbage": Fault(lambda _: garbage(), INCOMPLETE),
    "silence": Fault(lambda _: hang(Gate()), SILENT, agent="impatient", reason="llm_timeout"),
    "silence after text": Fault(
        lambda _: stream(["Once ", "upon."], Gate()), SILENT, text="Once ", agent="impatient", reason="llm_timeout"
    ),
}
PINGS = Fault(
    lambda _: Reply(200, b"", "text/event-stream", pings=b": ping\n\n"), SILENT, agent="impatient", reason="llm_timeout"
)
DIFFERENT: Mapping[tuple[str, str], dict[str, Any]] = {
    **{(one.name, "garbage"): {"requests": 2} for one in CHAT},  # the second without a stream
    **{
        (one.name, "reported"): {"words": "its provider answered 503 (try again later): too many for ****"}
        for one in (GEMINI, GEMINI_VERTEX)  # its events have a status
    },
    ("bedrock", "400"): {"requests": 2},  # fast-agent tries another form
    ("bedrock", "a page"): {"words": "its provider answered 502 (try again later): Bad Gateway"},  # the library's words
    ("responses by WebSocket", "a page"): {"words": INCOMPLETE, "requests": 1},  # not a status, but a frame
}
"""What is different of a fault (provider, fault)."""


@in_shared_gateways("early end", "cut", "error event", "attempts", "wrong key", "garbage", "silence")
async def test_every_failure_is_reported_in_the_same_words(
    shared: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (bedrock := sys.modules.get("fast_agent.llm.provider.bedrock.llm_bedrock")) is not None:
        monkeypatch.setattr(bedrock.BedrockLLM, "capabilities", {})  # of models that other tests have asked
    caplog.set_level(logging.WARNING, logger="pallas.runtime")
    name, model = shared.provider.name, shared.provider.model.partition("?")[0]
    found, expected = {}, {}
    for what, plain in {**FAULTS, **({"pings": PINGS} if name == GENERIC.name else {})}.items():
        fault = replace(plain, **DIFFERENT.get((name, what), {}))
        async with (
            shared.playing(fault.script(shared)) as served,
            served.in_flight(agent=fault.agent) as call,
        ):
            if fault.agent == "impatient":
                await once_silent(served, call)
            answer = answer_of(await call.reply())
            said = answer.is_error, answer.text, answer.meta["stop_reason"], served.outcomes
            found[what] = (*said, len(served.llm.requests), "".join(deltas_of(call)))
        text = f"The model could not answer: {model}: {fault.words.format(patience=shared.provider.patience)}"
        expected[what] = (True, text, fault.reason, (0, 1), fault.requests, fault.text)

    assert {what: (got, expected[what]) for what, got in found.items() if got != expected[what]} == {}
    address = shared.llm.base_url.removeprefix("http://")
    repeated = [record for record in caplog.records if record.message == REPEATED]
    assert not [record for record in repeated if address in str(record.__dict__)]


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


@pytest.mark.parametrize("provider", [GEMINI, BEDROCK], ids=str)
async def test_a_provider_that_wants_a_long_pause_is_not_asked_again(provider: Provider, tmp_path: Path) -> None:
    async with serving(tmp_path, provider, lambda _: served.llm.refuse(429, retry_after="3600")) as served:
        answer = await ask(served.url)

    assert (answer.is_error, len(served.llm.requests)) == (True, 1)


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
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries repeat requests at once."""
    for library in (openai._base_client, anthropic._base_client):
        monkeypatch.setattr(library, "INITIAL_RETRY_DELAY", 0.01)


def addressed(provider: Provider, port: int) -> Provider:
    url = f"http://127.0.0.1:{port}"
    texts = provider.config, provider.environ
    config, environ = ({name: value.replace("{url}", url) for name, value in some.items()} for some in texts)
    return replace(provider, config=config, environ=environ)


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


async def once_silent(served: Served, call: RawCall) -> None:
    """Hasten the time that the gateway waits for a model that has its request."""
    await served.llm.wait_for_requests(1)
    if not served.provider.in_threads:
        await hastened(call.reply())


def failure(answer: Answer) -> tuple[str, str]:
    assert answer.is_error, answer
    return answer.text, answer.meta["stop_reason"]


# --- settings with which no request can be sent -----------------------------------------------------------------------

UNSENDABLE: Mapping[str, tuple[Mapping[str, str], str]] = {
    "line break": ({"api_key": f"{KEY}\n4711"}, NO_HEADER),
    "letter": ({"api_key": f"ü{KEY}"}, NO_HEADER),
    "no scheme": ({"base_url": "localhost:8000/v1"}, NO_URL),
}


@pytest.mark.parametrize(
    "provider", [GENERIC, pytest.param(RESPONSES, marks=pytest.mark.whole), ANTHROPIC, GEMINI], ids=str
)
async def test_a_request_that_cannot_be_sent_names_the_setting(provider: Provider, tmp_path: Path) -> None:
    reasons = {}
    for name, (setting, _) in UNSENDABLE.items():
        wrong = replace(provider, config={**provider.config, **setting})
        async with serving(tmp_path / name, wrong, lambda _: say("Done.")) as served:
            reasons[name] = (await ask(served.url)).text

    expected = {name: f"The model could not answer: {provider.model}: {why}" for name, (_, why) in UNSENDABLE.items()}
    if provider is ANTHROPIC:
        expected["letter"] = "Done."  # its library sends UTF-8
    assert reasons == expected


# --- answers that redirect a request ----------------------------------------------------------------------------------


def redirect(location: str) -> Reply:
    return Reply(307, b"", "text/plain", {"location": location})


@pytest.mark.parametrize("provider", [GENERIC, AZURE, RESPONSES, ANTHROPIC, GEMINI], ids=str)
async def test_no_request_goes_to_a_server_that_an_answer_names(tmp_path: Path, provider: Provider) -> None:
    async with (
        scripted_provider(provider.dialect) as elsewhere,
        serving(tmp_path, provider, lambda request: redirect(f"{elsewhere.base_url}{request.path}")) as served,
    ):
        answer = await ask(served.url)

    assert "its provider answered 307 (check its address: the answer redirects to another one" in answer.text
    assert (elsewhere.requests, len(served.llm.requests)) == ([], 1)


async def test_a_request_follows_its_own_server(tmp_path: Path) -> None:
    async with serving(tmp_path, GENERIC, [redirect("/v1/moved/chat/completions"), say("Hello.")]) as served:
        answer = await ask(served.url)

    assert answer.text == "Hello."
    assert [one.path for one in served.llm.requests] == ["/v1/chat/completions", "/v1/moved/chat/completions"]


# --- the Responses API by WebSocket -----------------------------------------------------------------------------------


async def test_a_refused_handshake_is_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path, WEBSOCKET, [say("At last.")]) as served:
        served.llm.handshakes = [served.llm.refuse(429), served.llm.refuse(503)]
        answer = await ask(served.url)

    assert (answer.text, [record.message for record in caplog.records].count(REPEATED)) == ("At last.", 2)
    assert {request.body["type"] for request in served.llm.requests} == {"response.create"}


async def test_events_that_take_the_place_of_a_websocket_are_repeated_by_the_library_alone(tmp_path: Path) -> None:
    either = replace(RESPONSES, model="responses.gpt-4.1?transport=auto")
    async with serving(tmp_path, either, lambda _: served.llm.refuse(429, retry_after="0.01")) as served:
        served.llm.handshakes = [served.llm.refuse(503), served.llm.refuse(503)]
        answer = await ask(served.url)

    assert (answer.is_error, len(served.llm.requests), len(served.llm.handshakes)) == (True, 3, 1)


async def test_a_handshake_with_a_wrong_key_is_not(tmp_path: Path) -> None:
    async with serving(tmp_path, WEBSOCKET, [say("never")]) as served:
        served.llm.handshakes = [served.llm.refuse(401, "wrong key")]
        answer = await ask(served.url)

    reason = "responses.gpt-4.1: its provider answered 401 (check its API key): wrong key"
    assert (answer.text, answer.meta["stop_reason"]) == (f"The model could not answer: {reason}", "llm_error")
    assert served.llm.handshakes == []
    assert served.llm.requests == []


async def test_a_server_that_the_provider_manages_is_named_in_the_request_and_not_connected_to(tmp_path: Path) -> None:
    agents = {"solo": Agent(["docs"], model=RESPONSES.model, settings={"approve": ["local/*"]})}
    servers = {"docs": {"url": "https://docs.example/mcp", "management": "provider"}}
    async with scripted_provider(RESPONSES.dialect, lambda _: say("Done.")) as llm:
        config = {"responses": {"api_key": KEY, "base_url": f"{llm.base_url}/v1"}}
        async with running(write_project(tmp_path, agents, servers=servers, fastagent=config)) as served:
            assert (await ask(served.url("solo"))).text == "Done."
            assert (await health(served.url("solo")))["status"] == "ok"
    (request,) = llm.requests
    (tool,) = request.body["tools"]
    assert (tool["type"], tool["server_url"]) == ("mcp", "https://docs.example/mcp")
