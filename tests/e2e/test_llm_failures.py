"""What a client is told when a provider cannot be reached, or refuses a request: the cause, by every provider."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest

from tests.e2e.calling import ask
from tests.e2e.test_parameters_on_the_wire import MODELS, forget_open_clients, providers
from tests.support.gateway import Agent, running, write_project
from tests.support.listener import reserved_port
from tests.support.scripted_llm import fail, scripted_llm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.dialects import PolyglotLlm

pytestmark = pytest.mark.usefixtures("no_trust_store")
KNOWN = {"model_capabilities": {"max_output_tokens": 4096}}


async def test_a_refused_connection_is_reported_as_one_by_every_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLEOAI_API_KEY", "not-a-key")
    with reserved_port() as port:
        nowhere = cast("PolyglotLlm", SimpleNamespace(base_url=f"http://127.0.0.1:{port}"))
        agents = {name: Agent(model=model, settings=KNOWN) for name, model in MODELS.items()}
        project = write_project(tmp_path, agents, fastagent=providers(nowhere))
        async with running(project) as served:
            answers = await asyncio.gather(*(ask(served.url(name)) for name in MODELS))
    forget_open_clients()
    told = {name: answer.text for name, answer in zip(MODELS, answers, strict=True)}
    assert {name: text for name, text in told.items() if not text.endswith("reached: connection refused")} == {}
    assert {answer.meta["stop_reason"] for answer in answers} == {"llm_error"}


@pytest.mark.parametrize("body", [{"error": {"message": 'it\'s too "long"', "code": "long"}}, {"detail": "too long"}])
async def test_clients_receive_the_providers_message_and_no_python(body: dict[str, Any], tmp_path: Path) -> None:
    async with scripted_llm(lambda _: fail(400, body)) as llm:
        project = write_project(tmp_path, {"solo": Agent()}, llm_url=llm.base_url, gateway={"openai_api": True})
        async with running(project) as served, httpx.AsyncClient(base_url=served.base_url, trust_env=False) as http:
            turn = {"model": "solo", "messages": [{"role": "user", "content": "hello"}]}
            error = (await http.post("/v1/chat/completions", json=turn)).json()["error"]
            answer = await ask(served.url("solo"))
    said = body.get("detail") or body["error"]["message"]
    assert error["message"] == answer.text == f"The model could not answer: {said}"
