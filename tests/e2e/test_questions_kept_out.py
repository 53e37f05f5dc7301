"""What a question says, what it is answered and the page that it names stand in no log above DEBUG, metric or trace."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import override

import httpx
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult

from tests.support.askable_callers import EACH_ERA, INVALID_PARAMS, Person, accept, asked_at, client_of, told
from tests.support.asking import FORM, URL_MESSAGE, asking_downstream
from tests.support.asking_gateways import HUMAN, calls_the_tool_it_is_told
from tests.support.calling import ask
from tests.support.clients import MODERN_VERSION
from tests.support.commands import PATIENT_GATEWAY, READY_SECONDS, started
from tests.support.downstreams import Era
from tests.support.gateway import Agent, write_project
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, scripted_llm
from tests.support.trace_collector import trace_collector

DATABASE = {"database": "sqlite:///threads.db"}
ANSWER, MISFIT = "canary-answer", "canary-answer-that-is-far-too-long"
KEPT_OUT = (FORM, URL_MESSAGE, "pay.example", "url-secret", "May the tool", "canary-path", ANSWER, MISFIT)


def asks_and_asks_again(request: LlmRequest) -> Turn:
    """Call the tools that the message names; after `again`, the same one until the loop is halted."""
    again, _, tool = request.last_user_text.partition(" ")
    if again == "again":
        return call_tools([HUMAN if tool == "human" else (f"asking__{tool}", {})])
    if request.last_user_text == "wipe" and not request.tool_results:
        return call_tools([("asking__wipe", {"path": "/canary-path"})])
    return calls_the_tool_it_is_told(request)


class Answering(Person):
    """Answers every question; the first form of an `is_careless` one with what does not fit."""

    def __init__(self, *, is_careless: bool) -> None:
        super().__init__()
        self.is_careless = is_careless

    @override
    async def __call__(self, context: object, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params)
        if not isinstance(params, ElicitRequestFormParams):
            return accept()
        if "decision" in params.requested_schema["properties"]:
            return accept(decision="once")
        return accept(name=MISFIT if self.is_careless and len(self.asked) == 1 else ANSWER)


@EACH_ERA
async def test_nothing_of_a_question_or_an_answer_is_logged_counted_or_traced(era: Era, tmp_path: Path) -> None:
    guarded = {"approve": ["asking/wipe"], "loop_repeat_threshold": 2}
    agents = {
        "top": Agent(["user"], settings={"depends_on": ["user"]}),
        "user": Agent(["asking"], decorator="human_input=True", settings=guarded),
    }
    async with (
        scripted_llm(asks_and_asks_again) as llm,
        asking_downstream(era) as downstream,
        trace_collector() as collector,
    ):
        folder, log = tmp_path / "project", tmp_path / "log"
        write_project(
            folder, agents, llm_url=llm.base_url, servers={"asking": {"url": downstream.url}}, gateway=DATABASE
        )
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.base_url,
            "PALLAS_LOG_FILE": str(log),
            "PALLAS_LOG_LEVEL": "DEBUG",
            "PALLAS_LOG_STDERR": "0",
        }
        with started(["serve"], folder, command=PATIENT_GATEWAY, environ=environ) as program:
            await asyncio.to_thread(program.wait_for, "Try:")
            base_url = program.url.replace("localhost", "127.0.0.1")
            await questions_of_all_kinds(f"{base_url}/agents/user/mcp", f"{base_url}/agents/top/mcp")
            async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=30) as http:
                await questions_of_threads(http)
                metrics = (await http.get("/metrics")).raise_for_status().text
            program.signal(signal.SIGTERM)
            ran = await asyncio.to_thread(program.end, READY_SECONDS)

    records = [json.loads(line) for line in log.read_text().splitlines()]
    logged = [json.dumps(one, ensure_ascii=False) for one in records if one["level"] != "DEBUG"]
    assert len([one for one in records if one["message"] == "question answered"]) > 10
    assert len([one for one in records if one["message"] == "loop halted"]) == 3
    assert 'outcome="unaskable"' in metrics
    for text in KEPT_OUT:
        assert [one for one in logged if text in one] == [], text
        assert text not in metrics + ran.out + ran.err
        assert not collector.holds(text), text
    assert collector.spans


async def questions_of_all_kinds(user: str, top: str) -> None:
    """Ask clients of both eras, at the agent itself and through another one; then one that cannot be asked."""
    for mode in ("legacy", MODERN_VERSION):
        for url, prefix in ((user, ""), (top, "user: ")):
            # In 2026-07-28 an answer that does not fit ends the SDK's call.
            async with client_of(url, Answering(is_careless=mode == "legacy"), mode) as client:
                assert ANSWER in await told(client, f"{prefix}name")
                assert ANSWER in await told(client, f"{prefix}pay human")
                assert "wiped" in await told(client, f"{prefix}wipe")
    asked = await asked_at(user)
    refused = await asked.repeat({"action": "accept", "content": {"name": MISFIT}})
    assert refused.error["code"] == INVALID_PARAMS
    await asked.repeat()
    for message in ("again name", "again pay", "again human"):
        assert "[Stopped" in (await ask(user, message)).text


async def questions_of_threads(http: httpx.AsyncClient) -> None:
    given = {"name": {"name": ANSWER}, "pay": None}
    for message, content in given.items():
        chat = await http.post("/api/v1/agents/user/chat", json={"message": message})
        asked = chat.raise_for_status().json()
        path, id_ = f"/api/v1/threads/{asked['threadId']}/answers", asked["questions"][0]["id"]
        answers = {"maybe": MISFIT, "accept": content}
        statuses = [
            (await http.post(path, json={"answers": {id_: {"action": action, "content": one}}})).status_code
            for action, one in answers.items()
        ]
        assert statuses == [400, 200]
