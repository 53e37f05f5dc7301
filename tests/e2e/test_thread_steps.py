"""Tool calls and their results in threads: what clients read of them, and what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, running, write_project
from tests.support.scripted_llm import call_tools, say, scripted_llm
from tests.support.threads_api import http_of

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.support.scripted_llm import LlmRequest, Turn


def adds(request: LlmRequest) -> Turn:
    if request.last_user_text == "add" and not request.messages[-1].get("tool_call_id"):
        return call_tools([("tools__add", {"a": 1, "b": 2})], text="Let me add.")
    return say("It is 3." if request.last_user_text == "add" else "fine")


async def test_clients_read_the_tools_of_a_turn_and_the_model_reads_them_in_the_next(tmp_path: Path) -> None:
    async with stateless_downstream() as tools, scripted_llm(adds) as llm:
        project = write_project(
            tmp_path,
            {"solo": Agent(["tools"])},
            llm_url=llm.base_url,
            servers={"tools": {"transport": "http", "url": tools.url}},
            gateway={"database": "sqlite:///threads.db"},
        )
        async with running(project) as served, http_of(served) as http:
            first = await chat(http, "add")
            plain = await messages(http, first["threadId"])
            told = await messages(http, first["threadId"], tools="true")
            await chat(http, "next", threadId=first["threadId"])
            bad = await http.get(f"/threads/{first['threadId']}/messages", params={"tools": "yes"})
    _, followed, second = (request.messages for request in llm.requests)
    assert [one["role"] for one in plain] == ["user", "assistant"]
    assert [one["role"] for one in told] == ["user", "assistant", "tool", "assistant"]
    assert told[1]["content"] == "Let me add."
    assert told[1]["toolCalls"] == [{"id": "call_1_1", "toolName": "tools/add", "args": {"a": 1, "b": 2}}]
    result = {key: told[2][key] for key in ("turnIndex", "content", "toolCallId", "toolName", "ok", "images", "status")}
    assert result == {
        "turnIndex": 1,
        "content": '{"result":3}',  # as the model has read it
        "toolCallId": "call_1_1",
        "toolName": "tools/add",
        "ok": True,
        "images": [],
        "status": "complete",
    }
    assert second[: len(followed)] == followed
    assert [(one["role"], one["content"]) for one in second[len(followed) :]] == [
        ("assistant", "It is 3."),
        ("user", "next"),
    ]
    assert (bad.status_code, bad.json()["error"]) == (400, "bad_input")


async def chat(http: httpx.AsyncClient, message: str, *, agent: str = "solo", **body: Any) -> dict[str, Any]:
    response = await http.post(f"/agents/{agent}/chat", json={"message": message, **body})
    return dict(response.raise_for_status().json())


async def messages(http: httpx.AsyncClient, thread_id: str, **query: Any) -> list[dict[str, Any]]:
    found = await http.get(f"/threads/{thread_id}/messages", params=query)
    return list(found.raise_for_status().json()["messages"])
