"""Preflight and calls ask one address, whichever variable or key says where the provider is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.runtime.settings import provider_addresses
from tests.support.asgi import Receive, Scope, Send, http_only, respond_json
from tests.support.calling import ask
from tests.support.gateway import Agent, running, write_project
from tests.support.listener import serve_app

pytestmark = [
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession"),  # google-genai's own
]


class Provider:
    """A provider that has nothing; notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(f"{scope.get('method', 'WEBSOCKET')} {scope['path']}")
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await respond_json(send, 404, {"error": {"message": "nothing here"}})


COMPLETIONS = "GET /v1/models", "POST /v1/chat/completions"
RESPONSES = "GET /v1/models", "POST /v1/responses"
CLAUDE = "GET /v1/models/claude-sonnet-5", "POST /v1/messages"
GEMINI = "GET /v1beta/models/gemini-x", "POST /v1beta/models/gemini-x:streamGenerateContent"


@pytest.mark.parametrize(
    ("model", "variables", "settings", "asked"),
    [
        ("openai.gpt-x", {"OPENAI_BASE_URL": "/v1"}, {}, COMPLETIONS),
        ("openai.gpt-x", {"OPENAI_BASE_URL": "/v1"}, {"openai": {}}, COMPLETIONS),
        ("responses.gpt-5", {"OPENAI_BASE_URL": "/v1"}, {}, RESPONSES),
        ("responses.gpt-5", {"OPENAI_BASE_URL": "/v1"}, {"openai": {}}, RESPONSES),
        ("responses.gpt-5", {}, {"openai": {"base_url": "/v1"}}, RESPONSES),
        ("anthropic.claude-sonnet-5", {"ANTHROPIC_BASE_URL": ""}, {}, CLAUDE),
        ("anthropic.claude-sonnet-5", {"ANTHROPIC_BASE_URL": "/v1/"}, {}, CLAUDE),
        ("anthropic.claude-sonnet-5", {}, {"anthropic": {"base_url": "/v1"}}, CLAUDE),
        ("generic.x", {"GENERIC_BASE_URL": "/v1"}, {"generic": {}}, COMPLETIONS),
        ("xai.grok-4.5", {"XAI_BASE_URL": "/v1"}, {"xai": {}}, RESPONSES),
        ("groq.x", {}, {"groq": {"base_url": "/v1"}}, COMPLETIONS),
        ("google.gemini-x", {"GOOGLE_GEMINI_BASE_URL": ""}, {"google": {}}, GEMINI),
    ],
)
async def test_preflight_and_calls_ask_the_same_address(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    model: str,
    variables: Mapping[str, str],
    settings: Mapping[str, Mapping[str, Any]],
    asked: tuple[str, str],
) -> None:
    provider = Provider()
    for variable in provider_addresses.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for name in ("OPENAI", "ANTHROPIC", "GENERIC", "XAI", "GROQ", "GOOGLE"):
        monkeypatch.setenv(f"{name}_API_KEY", "not-a-key" if model.startswith((name.lower(), "responses")) else "")
    async with serve_app(provider) as listener:
        for variable, path in variables.items():
            monkeypatch.setenv(variable, listener.base_url + path)
        placed = {
            name: {key: listener.base_url + value if key == "base_url" else value for key, value in section.items()}
            for name, section in settings.items()
        }
        project = write_project(tmp_path, {"echo": Agent()}, fastagent={"default_model": model, **placed})
        async with running(project) as served:
            answer = await ask(served.url("echo"))
    assert answer.is_error
    assert set(asked) <= set(provider.asked)
