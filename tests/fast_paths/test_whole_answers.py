"""Answers that are requested as a whole are those of streams, which callers of live text still get."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.calls.provider_failures import CUT_OFF, INCOMPLETE
from tests.support.calling import answer_of, ask
from tests.support.gateway import Agent, running, write_project
from tests.support.provider_gateways import DELTAS, Provider, serving
from tests.support.provider_matrix import AZURE, GENERIC, GROQ, OPENAI, TENSORZERO, ZAI
from tests.support.scripted_llm import Reply, Turn, Usage, call_tools, cut, garbage, hang, say, scripted_llm, stream
from tests.support.threads_api import http_of, stream_of
from tests.support.waiting import Gate
from tests.support.watching import calling

LIVE_ONLY = {"stream_live_only": True}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "one", "schema": SCHEMA, "strict": True}}
TOOLS: list[tuple[str, dict[str, Any]]] = [("tools__echo", {"text": "Ann"}), ("tools__add", {"a": 1, "b": 2})]
SPENT = Usage(30, 7, cached=4, reasoning=3)
CASES: Mapping[str, tuple[Sequence[Turn], Mapping[str, Any]]] = {
    "plain": ([stream(["He", "llo", "llo"], usage=SPENT)], {}),
    "tools": ([call_tools(TOOLS, text="Both."), call_tools(TOOLS[:1], thinking="Again."), say("done")], {}),
    "cut short": ([say("Hel", finish_reason="length")], {}),
    "filtered": ([say("", finish_reason="content_filter")], {}),
    "structured": ([say('{"a": 1}')], {"params": {"response_format": FORMAT, "extra": {"min_p": 0.1}}}),
    "no usage": ([say("Hello.", usage=None)], {}),
}
CALLS = [{"function": {"name": name, "arguments": json.dumps(given)}} for name, given in TOOLS]
ODD = {"id": None, "choices": [{"message": {"content": None, "tool_calls": CALLS}}], "usage": {"prompt_tokens": 3}}
FAILURES: Mapping[str, tuple[Turn, str, int]] = {
    "reported": (Reply(200, b'{"error": {"message": "too many"}}', "application/json"), "reported: too many", 1),
    "half": (Reply(200, b'{"choices": [{"mess', "application/json"), INCOMPLETE, 1),
    "nothing": (Reply(200, b"{}", "application/json"), INCOMPLETE, 1),
    "empty": (say(""), INCOMPLETE, 2),  # fast-agent asks again
    "garbage": (garbage(), INCOMPLETE, 1),
    "cut off": (cut(), CUT_OFF, 1),
    "refused": (Reply(429, b"{}", "application/json", {"retry-after": "0.01"}), "answered 429", 3),
    "silent": (hang(Gate()), "sent nothing for 0.3 s", 1),
}


def whole(provider: Provider) -> Provider:
    return replace(provider, more={**provider.more, **LIVE_ONLY})


@pytest.mark.parametrize("provider", [GENERIC, OPENAI, AZURE, GROQ, TENSORZERO, ZAI], ids=str)
async def test_a_whole_answer_is_that_of_a_stream(provider: Provider, tmp_path: Path) -> None:
    async with serving(tmp_path, whole(provider), []) as served:
        for name, (turns, arguments) in CASES.items():
            found = []
            for meta in (DELTAS, {}):
                async with served.playing(turns), calling(served.url, "hi", meta=meta, **arguments) as (_, call):
                    answer = answer_of(await call.reply())
                bodies = [dict(one.body) for one in served.llm.requests]
                assert {body.pop("stream") for body in bodies} == {meta is DELTAS}
                assert {body.pop("stream_options", None) is None for body in bodies} == {meta is not DELTAS}
                facts = {key: answer.meta.get(key) for key in ("usage", "stop_reason", "ignored", "params")}
                plain = [{key: body[key] for key in body.keys() - {"tool_stream"}} for body in bodies]  # of Z.AI
                found.append((answer.text, answer.is_error, facts, plain))
            assert found[0] == found[1], name


async def test_who_reads_live_text_gets_a_stream(tmp_path: Path) -> None:
    async with scripted_llm(lambda _: stream(["Once ", "upon."])) as llm:
        fastagent = {"generic": {"api_key": "none", "base_url": llm.base_url, **LIVE_ONLY}}
        gateway = {"openai_api": True, "database": "sqlite:///threads.db"}
        project = write_project(tmp_path, {"solo": Agent()}, llm_url=llm.base_url, fastagent=fastagent, gateway=gateway)
        async with running(project) as served, http_of(served) as http:
            for is_live in (False, True):
                asked = {"model": "solo", "messages": [{"role": "user", "content": "hi"}], "stream": is_live}
                assert "upon." in (await http.post(f"{served.base_url}/v1/chat/completions", json=asked)).text
            async with stream_of(http, "/agents/solo/chat", {"message": "hi"}) as thread:
                await thread.last()
            await http.post("/agents/solo/chat", json={"message": "hi"})

    assert [one.is_streamed for one in llm.requests] == [False, True, True, False]


async def test_a_whole_answer_that_fails_or_is_odd_is_treated_as_a_stream_is(tmp_path: Path) -> None:
    found, gate = {}, Gate()
    async with serving(tmp_path, whole(GENERIC), [], params="streaming_timeout=0.3") as served:
        for name, (turn, words, _) in FAILURES.items():
            async with served.playing([turn] * 3):
                answer = await ask(served.url)
            found[name] = (answer.is_error and words in answer.text, len(served.llm.requests))
        assert found == {name: (True, requests) for name, (_, _, requests) in FAILURES.items()}

        async with served.playing([Reply(200, json.dumps(ODD).encode(), "application/json"), say("done")]):
            assert (await ask(served.url)).text == "done"
            assert sorted(call.tool or "" for call in served.tools.recorder.calls()) == ["add", "echo"]

    async with serving(tmp_path / "patient", whole(GENERIC), lambda _: hang(gate)) as served:
        async with calling(served.url, meta={}) as (_, call):
            await gate.wait_for_entered()
            await call.vanish()
        await served.llm.wait_for_aborted()
