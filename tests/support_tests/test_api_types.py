"""The check of the answers of `/v1`: what it finds, and that they pass it."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import api_types
from tests.support.api_types import misfits_of_answer
from tests.support.gateway import Agent, running, write_project
from tests.support.protocol_messages import MISFITS

CHAT = "/v1/chat/completions"
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
WHOLE = {"id": "1", "object": "chat.completion", "created": 1, "model": "echo", "choices": [CHOICE]}
ERROR = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}


def test_answers_of_the_api_fit() -> None:
    assert misfits_of_answer(CHAT, {**WHOLE, "pallas": {}}) == misfits_of_answer(CHAT, {"error": ERROR}) == []


@pytest.mark.parametrize(
    "answer",
    [
        {**WHOLE, "choices": None},
        {**WHOLE, "created": "1"},
        {**WHOLE, "choices": [{**CHOICE, "finish_reason": "done"}]},
        {**WHOLE, "object": "chat.completion.chunk"},
        {"error": {**ERROR, "message": None}},
    ],
)
def test_null_and_wrong_members_of_an_answer_do_not_fit(answer: dict[str, Any]) -> None:
    assert misfits_of_answer(CHAT, answer)


async def test_the_answers_of_a_gateway_in_this_process_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_types, "misfits_of_answer", lambda _, answer: [answer["object"]])
    project = write_project(tmp_path, {"echo": Agent()}, gateway={"openai_api": True})
    async with running(project) as served, httpx.AsyncClient(base_url=served.base_url, timeout=30) as http:
        body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
        await http.post(CHAT, json=body)
        await http.post(CHAT, json={**body, "stream": True})
        await http.get("/v1/models")
    found = {one.rpartition(" ")[2] for one in MISFITS.take()}
    assert found == {"chat.completion", "chat.completion.chunk", "list"}
