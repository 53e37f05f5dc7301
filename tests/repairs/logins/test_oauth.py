"""Logins block the event loop, and may prompt."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import time

import httpx
import pytest
from fast_agent.llm.provider.openai import codex_oauth, xai_oauth

from pallas_gateway.repairs.logins._file import FILE
from tests.support.asgi import Receive, Scope, Send, http_only, read_body, respond_json
from tests.support.calling import answer_of, ask, health
from tests.support.listener import serve_app
from tests.support.provider_gateways import Provider, codex_token, serving
from tests.support.provider_matrix import CODEX, XAI
from tests.support.scripted_llm import say
from tests.support.waiting import Gate

AT_V1 = {"base_url": "{url}/v1"}
CODEX_BY_LOGIN = replace(CODEX, config=AT_V1)
XAI_BY_LOGIN = replace(XAI, config=AT_V1)
BY_CODEX, BY_XAI = (CODEX_BY_LOGIN, "codex"), (XAI_BY_LOGIN, "xai")
LOGINS = [BY_CODEX, pytest.param(*BY_XAI, marks=pytest.mark.whole)]
OTHER_LOGINS = [pytest.param(*BY_CODEX, marks=pytest.mark.whole), BY_XAI]


def log_in(path: Path, login: str, name: str, *, expires_in: float = 3600) -> None:
    """Write the file of a login, as `fast-agent auth provider login` does."""
    credential = {
        "access_token": codex_token(name),
        "refresh_token": f"{name}-refresh",
        "expires_at": time() + expires_in,
    }
    path.write_text(json.dumps({"version": 1, "providers": {login: credential}}))


@pytest.mark.parametrize(("provider", "login"), LOGINS, ids=str)
async def test_an_agent_without_a_key_or_a_login_does_not_start(provider: Provider, login: str, tmp_path: Path) -> None:
    async with serving(tmp_path, provider, []) as served:
        answer = await ask(served.url)

    assert (answer.is_error, answer.meta["stop_reason"]) == (True, "agent_unavailable")
    assert f"fast-agent auth provider login {login}" in answer.text
    assert FILE in answer.text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{ no JSON", f"Codex Responses cannot read its login in the file of {FILE}: Delete the file, and log "),
        ("{}", f"Codex Responses has no API key and no login, and the file of {FILE} holds none: Set `codexresponses."),
    ],
    ids=["no-json", "no-login"],
)
async def test_a_file_without_a_login_is_named(
    content: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "auth.json").write_text(content)
    monkeypatch.setenv(FILE, str(tmp_path / "auth.json"))
    async with serving(tmp_path, CODEX_BY_LOGIN, []) as served:
        document = await health(served.url)

    assert f"failed to start: {reason}" in document["message"]


@pytest.mark.parametrize(("provider", "login"), OTHER_LOGINS, ids=str)
async def test_the_token_of_a_login_is_sent(
    provider: Provider, login: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(tmp_path / "auth.json", login, "ann")
    monkeypatch.setenv(FILE, str(tmp_path / "auth.json"))
    async with serving(tmp_path, provider, lambda _: say("Done.")) as served:
        assert (await ask(served.url)).text == "Done."

    assert [request.bearer for request in served.llm.requests] == [codex_token("ann")]


@pytest.mark.parametrize(("provider", "login"), LOGINS, ids=str)
async def test_an_expired_token_is_renewed_while_the_gateway_answers_others(
    provider: Provider, login: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    log_in(tmp_path / "auth.json", login, "old", expires_in=-1)
    monkeypatch.setenv(FILE, str(tmp_path / "auth.json"))
    async with (
        login_server(gate, monkeypatch),
        serving(tmp_path, provider, lambda _: say("Done.")) as served,
        served.in_flight() as call,
    ):
        await gate.wait_for_entered()
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{served.gateway.base_url}/livez")).status_code == 200
        gate.open()
        assert answer_of(await call.reply()).text == "Done."
        assert (await ask(served.url)).text == "Done."

    assert [request.bearer for request in served.llm.requests] == [codex_token("new")] * 2


@pytest.mark.parametrize(("provider", "login"), OTHER_LOGINS, ids=str)
async def test_a_token_that_cannot_be_renewed_is_reported(
    provider: Provider, login: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(tmp_path / "auth.json", login, "old", expires_in=-1)
    monkeypatch.setenv(FILE, str(tmp_path / "auth.json"))
    async with login_server(None, monkeypatch), serving(tmp_path, provider, []) as served:
        answer = await ask(served.url)

    why = f"its login in the file of {FILE} cannot be renewed; log in with `{FILE}=PATH fast-agent auth provider login"
    assert answer.text.startswith(f"The model could not answer: {provider.model}: {why} {login}`")
    assert answer.meta["stop_reason"] == "llm_error"


@pytest.mark.parametrize("provider", [CODEX, XAI], ids=str)
async def test_a_refused_key_by_websocket_starts_no_login(provider: Provider, tmp_path: Path) -> None:
    chosen = replace(provider, model=f"{provider.model}?transport=websocket")
    async with serving(tmp_path, chosen, []) as served:
        served.llm.handshakes = [served.llm.refuse(401, "wrong key")]
        answer = await ask(served.url)

    reason = f"{provider.model}: its provider answered 401 (check its API key): wrong key"
    assert answer.text == f"The model could not answer: {reason}"


@asynccontextmanager
async def login_server(gate: Gate | None, patch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    @http_only
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        if gate is None:
            await respond_json(send, 400, {"error": "invalid_request"})
            return
        await gate.enter("renewal")
        await respond_json(send, 200, {"access_token": codex_token("new"), "refresh_token": "next", "expires_in": 3600})

    async with serve_app(app) as listener:
        patch.setattr(codex_oauth, "CODEX_TOKEN_URL", f"{listener.base_url}/token")
        patch.setattr(xai_oauth, "XAI_TOKEN_URL", f"{listener.base_url}/token")
        yield
