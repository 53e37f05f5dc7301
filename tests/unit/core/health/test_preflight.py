"""Asking LLM providers how they are, each of them faked with respx; and when the active one is asked again."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
import respx
from prometheus_client import CollectorRegistry

from pallas_gateway.core.health.preflight import Preflight, ask
from pallas_gateway.core.health.probe import http_error
from pallas_gateway.core.health.verdict import LlmResult
from pallas_gateway.identity.secret import Secret
from pallas_gateway.limits import HealthLimits
from pallas_gateway.runtime.protocols import LlmProvider
from pallas_gateway.tasks import TaskOwner
from pallas_gateway.telemetry.metrics import Metrics
from tests.support.listener import reserved_port
from tests.support.waiting import Gate

KEY = "sk-hunter2"
ANTHROPIC_URL, OPENAI_URL = "https://api.anthropic.com", "https://api.openai.com/v1"
CLAUDE = LlmProvider("anthropic", "anthropic", ANTHROPIC_URL, Secret(KEY), "claude-x")
OPENAI = LlmProvider("openai", "openai", OPENAI_URL, Secret(KEY), "gpt-x")
GENERIC = LlmProvider("generic", "openai", "http://models.example:8080/v1", Secret(KEY), "local-x")
BEDROCK = LlmProvider("bedrock", None, None, None, "claude-x")
GEMINI = LlmProvider("google", "google", "https://generativelanguage.googleapis.com", Secret(KEY), "gemini-x")
AZURE = LlmProvider("azure", "azure", "https://mine.openai.azure.com/", Secret(KEY), "gpt-x", api_version="2024-10-21")
GROK = LlmProvider("xai", "openai", "https://api.x.ai/v1", Secret(KEY), "grok-x")
OPENROUTER = LlmProvider(
    "openrouter", "openai", "https://openrouter.ai/api/v1", Secret(KEY), key_url="https://openrouter.ai/api/v1/key"
)
NO_MODEL: dict[str, Any] = {"type": "error", "error": {"type": "not_found_error", "message": f"model: claude-x {KEY}"}}
REFUSED = {"error": {"message": f"Incorrect API key provided: {KEY}"}}


def listing(*models: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": model, "object": "model"} for model in models]}


async def asked(provider: LlmProvider, **answer: Any) -> tuple[str | None, httpx.Request]:
    """What is wrong with a provider that answers so, and the request it was asked."""
    with respx.mock:
        route = respx.get(url__regex=".*").respond(**answer)
        result = await outcome(provider)
        return result.error, route.calls.last.request


async def outcome(provider: LlmProvider, seconds: float = 5.0) -> LlmResult:
    async with httpx.AsyncClient(timeout=None) as client:  # noqa: S113  preflight has its own deadline
        return await ask(provider, client, seconds=seconds)


BEARER = {"authorization": f"Bearer {KEY}"}
ANTHROPIC = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
GOOGLE, GOOGLES = {"x-goog-api-key": KEY}, "https://generativelanguage.googleapis.com/v1beta/models"


@pytest.mark.parametrize(
    ("provider", "answer", "url", "headers"),
    [
        (CLAUDE, {"type": "model", "id": "claude-x"}, "https://api.anthropic.com/v1/models/claude-x", ANTHROPIC),
        (
            replace(CLAUDE, model=None),  # a model that everybody has
            {"id": "claude-sonnet-4-5"},
            "https://api.anthropic.com/v1/models/claude-sonnet-4-5",
            ANTHROPIC,
        ),
        (OPENAI, listing("gpt-w", "gpt-x"), "https://api.openai.com/v1/models", BEARER),
        (GEMINI, {"name": "models/gemini-x"}, f"{GOOGLES}/gemini-x", GOOGLE),
        (replace(GEMINI, model=None), {"models": []}, GOOGLES, GOOGLE),
        # A deployment may have any name.
        (
            AZURE,
            listing("gpt-4o"),
            "https://mine.openai.azure.com/openai/models?api-version=2024-10-21",
            {"api-key": KEY},
        ),
        # Its models it shows to anyone.
        (OPENROUTER, {"data": {"label": "mine"}}, "https://openrouter.ai/api/v1/key", BEARER),
    ],
)
async def test_each_provider_is_asked_with_its_key_for_what_shows_that_it_works(
    provider: LlmProvider, answer: Mapping[str, Any], url: str, headers: Mapping[str, str]
) -> None:
    error, request = await asked(provider, json=answer)
    assert (error, str(request.url)) == (None, url)
    shown = {"authorization": None, **headers}
    assert {name: request.headers.get(name) for name in shown} == shown


WRONG_PATH, REFUSAL = "HTTP 404, is base_url right?", "the key was refused (HTTP {})"
NO_CLAUDE, NO_LIST = "what answers is not Anthropic's API", "what answers is not a list of models"
NGINX, WELCOME = {"status_code": 404, "html": "<h1>nginx</h1>"}, {"text": "It works!"}
INVALID_KEY = {"error": {"message": f"API key not valid: {KEY}"}}


@pytest.mark.parametrize(
    ("provider", "answer", "error"),
    [
        (CLAUDE, {"status_code": 401, "json": REFUSED}, REFUSAL.format(401)),
        (CLAUDE, {"status_code": 403, "json": REFUSED}, REFUSAL.format(403)),
        (CLAUDE, {"status_code": 404, "json": NO_MODEL}, "model 'claude-x' not found"),
        (CLAUDE, NGINX, WRONG_PATH),
        (CLAUDE, {"status_code": 429, "json": REFUSED}, None),
        (CLAUDE, {"status_code": 500, "text": KEY}, "HTTP 500"),
        (CLAUDE, {"status_code": 529, "json": REFUSED}, "HTTP 529"),
        (CLAUDE, {"status_code": 301, "headers": {"location": "https://elsewhere.example"}}, "HTTP 301"),
        (CLAUDE, WELCOME, NO_CLAUDE),
        (CLAUDE, {"json": ["claude-x"]}, NO_CLAUDE),
        (CLAUDE, {"content": b"\xff\xfe"}, NO_CLAUDE),
        (replace(CLAUDE, model=None), {"status_code": 404, "json": NO_MODEL}, None),  # nobody has configured the model
        (OPENAI, {"status_code": 401, "json": REFUSED}, REFUSAL.format(401)),
        (OPENAI, {"status_code": 404, "json": REFUSED}, WRONG_PATH),
        (OPENAI, {"status_code": 429, "json": REFUSED}, None),
        (OPENAI, {"status_code": 503, "text": KEY}, "HTTP 503"),
        (OPENAI, {"json": listing("gpt-w")}, "model 'gpt-x' not found"),
        (OPENAI, {"json": listing()}, "model 'gpt-x' not found"),
        (OPENAI, {"json": {"data": [None, "gpt-x", {"name": "gpt-x"}]}}, "model 'gpt-x' not found"),
        (OPENAI, {"json": {"data": "gpt-x"}}, NO_LIST),
        (OPENAI, {"json": {}}, NO_LIST),
        (OPENAI, WELCOME, NO_LIST),
        (replace(OPENAI, model=None), {"json": listing("gpt-w")}, None),
        # A compatible server only has to answer: many answer to any name, and not all of them list their models.
        (GENERIC, {"json": listing("local-x")}, None),
        (GENERIC, {"json": listing("/models/local-x.gguf")}, None),
        (GENERIC, {"status_code": 404}, None),
        (GENERIC, {"status_code": 405}, None),
        (GENERIC, {"status_code": 401}, REFUSAL.format(401)),
        (GENERIC, {"status_code": 500}, "HTTP 500"),
        (GENERIC, WELCOME, NO_LIST),
        (GEMINI, {"status_code": 400, "json": INVALID_KEY}, "HTTP 400, is the key right?"),
        (GEMINI, {"status_code": 403, "json": REFUSED}, REFUSAL.format(403)),
        (GEMINI, {"status_code": 404, "json": {"error": {"code": 404}}}, "model 'gemini-x' not found"),
        (GEMINI, NGINX, WRONG_PATH),
        (GEMINI, {"status_code": 429, "json": REFUSED}, None),
        (GEMINI, {"status_code": 503, "text": KEY}, "HTTP 503"),
        (GEMINI, WELCOME, "what answers is not Gemini's API"),
        (AZURE, {"status_code": 401, "json": REFUSED}, REFUSAL.format(401)),
        (GROK, {"status_code": 400, "json": REFUSED}, "HTTP 400, is the key right?"),
        (GROK, {"status_code": 403, "json": REFUSED}, REFUSAL.format(403)),
        (OPENROUTER, {"status_code": 401, "json": REFUSED}, REFUSAL.format(401)),
        (OPENROUTER, {"status_code": 429, "json": REFUSED}, None),
    ],
)
async def test_what_a_provider_answers_is_told_in_a_few_words(
    provider: LlmProvider, answer: Mapping[str, Any], error: str | None
) -> None:
    assert (await asked(provider, **answer))[0] == error


MODELS_EXAMPLE = "http://models.example:8080"


@pytest.mark.parametrize(
    ("provider", "path"),
    [
        *((replace(CLAUDE, url=MODELS_EXAMPLE + tail), "/v1/models/claude-x") for tail in ("", "/", "/v1", "/v1/")),
        (replace(CLAUDE, url=f"{MODELS_EXAMPLE}/claude/v1/"), "/claude/v1/models/claude-x"),
        *((replace(OPENAI, url=MODELS_EXAMPLE + tail), "/v1/models") for tail in ("/v1", "/v1/")),
        *((replace(OPENAI, url=MODELS_EXAMPLE + tail), "/models") for tail in ("", "/")),
    ],
)
async def test_a_base_url_is_used_as_fast_agent_uses_it(provider: LlmProvider, path: str) -> None:
    _, request = await asked(provider, json=listing())
    assert str(request.url) == MODELS_EXAMPLE + path


@pytest.mark.parametrize(
    ("provider", "answer"),
    [
        (OPENAI, {"json": listing("/models/local-x.gguf")}),
        (replace(OPENAI, name="responses"), {"json": listing()}),
        (CLAUDE, {"status_code": 404, "json": NO_MODEL}),
        (CLAUDE, {"status_code": 404, "json": {"detail": "Not Found"}}),
        (CLAUDE, {"status_code": 501}),
        (GEMINI, {"status_code": 404, "text": "404 page not found"}),
    ],
)
async def test_a_model_server_need_not_know_the_model_by_its_name(
    provider: LlmProvider, answer: Mapping[str, Any]
) -> None:
    with respx.mock:
        respx.get(url__regex=".*").respond(**answer)
        elsewhere, own = [await outcome(replace(provider, is_elsewhere=where)) for where in (True, False)]
    assert (elsewhere.status, elsewhere.error) == ("ok", None)
    assert elsewhere.warning == "the server at base_url lists no model of this name; a call shows if it accepts it"
    assert elsewhere.document()["warning"] == elsewhere.warning
    assert (own.status, own.warning) == ("failed", None)


@pytest.mark.parametrize("provider", [CLAUDE, OPENAI, GEMINI])
@pytest.mark.parametrize("status", [401, 500])
async def test_a_model_server_that_refuses_or_fails_is_down(provider: LlmProvider, status: int) -> None:
    with respx.mock:
        respx.get(url__regex=".*").respond(status_code=status)
        assert (await outcome(replace(provider, is_elsewhere=True))).status == "failed"


async def test_configured_headers_are_sent_along_and_win() -> None:
    headers = {"X-Team": "blue", "authorization": "Bearer theirs"}
    _, request = await asked(replace(OPENAI, headers=headers), json=listing("gpt-x"))
    assert request.headers["x-team"] == "blue"
    assert request.headers.get_list("authorization") == ["Bearer theirs"]


@pytest.mark.parametrize("provider", [CLAUDE, OPENAI])
@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (httpx.ConnectError("All connection attempts failed"), "connection refused"),
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), "TLS error"),
        (httpx.RemoteProtocolError("Server disconnected"), "RemoteProtocolError: Server disconnected"),
        (httpx.LocalProtocolError(f"Illegal header value b'{KEY}'"), "a configured header holds a character that HTTP"),
        (RuntimeError(f"unforeseen {KEY}"), "the check failed: RuntimeError"),
    ],
)
async def test_a_provider_that_does_not_answer_is_told(provider: LlmProvider, failure: Exception, error: str) -> None:
    with respx.mock:
        respx.get(url__regex=".*").mock(side_effect=failure)
        result = await outcome(provider)
    assert result.status == "failed"
    assert str(result.error).startswith(error)


def test_a_name_nobody_knows_is_told() -> None:
    unknown = httpx.ConnectError("[Errno -2] Name or service not known")
    unknown.__cause__ = socket.gaierror(-2, "Name or service not known")
    assert http_error(unknown) == "host name not found"


@pytest.mark.parametrize("url", ["nonsense", "http://[::1", "ftp://models.example"])
async def test_an_address_that_is_none_is_told(url: str) -> None:
    assert (await outcome(replace(OPENAI, url=url))).error


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY}✓"])
async def test_a_key_that_cannot_be_sent_is_told_without_showing_it(key: str) -> None:
    with reserved_port() as port:
        result = await outcome(replace(OPENAI, url=f"http://127.0.0.1:{port}", key=Secret(key)))
    assert result.status == "failed"
    assert KEY not in repr(result)


@pytest.mark.parametrize(
    ("provider", "why"),
    [
        (BEDROCK, "there is no check for this provider"),
        (replace(OPENAI, key=None), "no key is configured"),
        (replace(GENERIC, url=None), "no base_url is configured"),
    ],
)
async def test_a_provider_that_cannot_be_asked_is_not_checked_and_not_failed(provider: LlmProvider, why: str) -> None:
    with respx.mock:  # any request would fail
        result = await outcome(provider)
    assert (result.status, result.error) == ("not checked", why)


@dataclass
class Flight:
    """A preflight, its metrics, and how each host answers; `gate` holds the answers if there is one."""

    preflight: Preflight
    metrics: Metrics
    tasks: TaskOwner
    answers: dict[str, httpx.Response]
    gate: Gate | None = None
    requests: list[str] = field(default_factory=list)

    async def respond(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request.url.host)
        if self.gate is not None:
            await self.gate.enter(request.url.host)
        return self.answers[request.url.host]

    def up(self, provider: str) -> float | None:
        return self.metrics.registry.get_sample_value("pallas_llm_provider_up", {"provider": provider})

    def latest(self, provider: LlmProvider) -> tuple[str, str | None] | None:
        latest = self.preflight.known(provider)
        return (latest.status, latest.error) if latest else None


@asynccontextmanager
async def flight(gate: Gate | None = None, **limits: float) -> AsyncGenerator[Flight]:
    metrics = Metrics(CollectorRegistry())
    answers = {
        "api.anthropic.com": httpx.Response(200, json={"id": "claude-x"}),
        "api.openai.com": httpx.Response(401, json=REFUSED),
    }
    async with httpx.AsyncClient() as client, TaskOwner() as tasks:
        preflight = Preflight(client=client, tasks=tasks, metrics=metrics, limits=HealthLimits(**limits))
        one = Flight(preflight, metrics, tasks, answers, gate)
        with respx.mock(assert_all_called=False) as router:
            router.get(url__regex=".*").mock(side_effect=one.respond)
            yield one


async def test_health_does_not_wait_for_a_provider_that_does_not_answer() -> None:
    gate = Gate()
    async with flight(gate, probe_seconds=0.01, preflight_seconds=600) as one:
        assert await asyncio.wait_for(one.preflight.result(OPENAI), 20) is None
        gate.open()  # else the end waits 10 s for the answer


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    records = [record for record in caplog.records if record.name == "pallas.preflight"]
    return [(record.levelname, vars(record)["provider"]) for record in records]


async def test_all_providers_are_asked_at_once_and_each_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pallas.preflight")
    gate = Gate()
    async with flight(gate) as one:
        running = asyncio.create_task(one.preflight.run([OPENAI, replace(CLAUDE, model=None)]))
        await gate.wait_for_entered(2)
        gate.open()
        await asyncio.wait_for(running, 20)
    assert lines(caplog) == [("WARNING", "openai"), ("INFO", "anthropic")]
    assert KEY not in caplog.text + repr([vars(record) for record in caplog.records])


@pytest.mark.parametrize(
    ("provider", "latest", "up", "level"),
    [
        (CLAUDE, ("ok", None), 1, "INFO"),
        (OPENAI, ("failed", "the key was refused (HTTP 401)"), 0, "WARNING"),
        (BEDROCK, ("not checked", "there is no check for this provider"), None, "INFO"),
    ],
)
async def test_a_provider_is_up_or_down_or_neither_if_it_was_not_checked(
    provider: LlmProvider, latest: tuple[str, str | None], up: int | None, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pallas.preflight")
    async with flight() as one:
        await one.preflight.run([provider])
        assert (one.latest(provider), one.up(provider.name)) == (latest, up)
    assert lines(caplog) == [(level, provider.name)]


async def test_only_providers_whose_models_are_used_count() -> None:
    async with flight() as one:
        await one.preflight.run([CLAUDE, replace(OPENAI, model=None)])
        assert (one.up("anthropic"), one.up("openai")) == (1, None)


async def test_an_agent_without_a_provider_has_no_result() -> None:
    async with flight() as one:
        assert one.preflight.known(None) is None
        assert await one.preflight.result(None) is None
        assert one.requests == []


async def test_a_model_that_is_not_the_default_one_is_asked_for_once_and_waited_for() -> None:
    gate = Gate()
    async with flight(gate) as one:
        asking = [asyncio.create_task(one.preflight.result(CLAUDE)) for _ in range(3)]
        await gate.wait_for_entered()
        assert one.latest(CLAUDE) is None
        gate.open()
        results = await asyncio.wait_for(asyncio.gather(*asking), 20)
        assert {(result.status, result.model) for result in results if result} == {("ok", "claude-x")}
        assert one.requests == ["api.anthropic.com"]


async def test_a_provider_is_up_while_all_of_its_models_are() -> None:
    other = replace(CLAUDE, model="claude-y", url="https://api.openai.com")
    async with flight() as one:
        await one.preflight.run([CLAUDE])
        assert one.up("anthropic") == 1
        await one.preflight.result(other)
        assert one.up("anthropic") == 0
        assert one.latest(CLAUDE) == ("ok", None)


async def test_a_fresh_result_is_not_asked_for_again() -> None:
    async with flight() as one:
        await one.preflight.run([CLAUDE])
        for _ in range(3):
            assert one.latest(CLAUDE) == ("ok", None)
        assert len(one.tasks) == 0
        assert one.requests == ["api.anthropic.com"]


async def test_an_old_result_is_given_and_renewed_behind_it_once(caplog: pytest.LogCaptureFixture) -> None:
    async with flight(stale_seconds=0.0) as one:
        await one.preflight.run([OPENAI, replace(CLAUDE, model=None)])
        caplog.set_level(logging.INFO, logger="pallas.preflight")
        one.answers["api.openai.com"] = httpx.Response(200, json=listing("gpt-x"))
        one.gate = Gate()

        for _ in range(5):
            assert one.latest(OPENAI) == ("failed", "the key was refused (HTTP 401)")
        await one.gate.wait_for_entered()
        one.gate.open()
        await one.tasks.wait_until_idle()

        one.preflight._limits.stale_seconds = 300
        assert one.latest(OPENAI) == ("ok", None)
        assert one.up("openai") == 1
        assert one.requests[2:] == ["api.openai.com"]  # the others are not asked again
    assert lines(caplog) == [("WARNING", "openai"), ("INFO", "openai")]


async def test_a_result_that_stays_the_same_is_not_said_again(caplog: pytest.LogCaptureFixture) -> None:
    async with flight(stale_seconds=0.0) as one:
        await one.preflight.run([OPENAI])
        one.latest(OPENAI)
        await one.tasks.wait_until_idle()
        assert len(one.requests) == 2
    assert lines(caplog) == [("WARNING", "openai")]
