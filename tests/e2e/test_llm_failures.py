"""What a client is told when a provider cannot be reached, or refuses a request: the cause, by every provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.calling import ask
from tests.support.gateway import Agent, running, write_project
from tests.support.scripted_llm import fail, scripted_llm

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("body", [{"error": {"message": 'it\'s too "long"', "code": "long"}}, {"detail": "too long"}])
async def test_clients_receive_the_providers_message_and_no_python(body: dict[str, Any], tmp_path: Path) -> None:
    async with scripted_llm(lambda _: fail(400, body)) as llm:
        project = write_project(tmp_path, {"solo": Agent()}, llm_url=llm.base_url, gateway={"openai_api": True})
        async with running(project) as served, httpx.AsyncClient(base_url=served.base_url, trust_env=False) as http:
            turn = {"model": "solo", "messages": [{"role": "user", "content": "hello"}]}
            error = (await http.post("/v1/chat/completions", json=turn)).json()["error"]
            answer = await ask(served.url("solo"))
    said = body.get("detail") or body["error"]["message"]
    words = f"The model could not answer: generic.test-model: its provider answered 400: {said}"
    assert error["message"] == answer.text == words
