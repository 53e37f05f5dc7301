"""What a client is told while a call runs, in both protocol eras: the script on one side, the story on the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import (
    EACH_ERA,
    INITIALIZE_VERSIONS,
    MODERN_VERSION,
    Connect,
    ProgressLog,
    raw_client,
    text_of,
    tool_params,
)
from tests.support.gateway import Agent, until_idle
from tests.support.scripted_llm import LlmRequest, Reply, Turn, Usage, call_tools, fail, say, stream
from tests.support.waiting import Gate
from tests.support.watching import (
    DESK,
    EACH_VERSION,
    PIPELINE,
    Watched,
    calling,
    check_order,
    script_of,
    stage,
    turns_so_far,
    watch,
    watching_meta,
)

Payload = dict[str, Any]
ADD = call_tools([("tools__add", {"a": 1, "b": 2})], text="Let me see.")


def chunk(agent: str, iteration: int, text: str, *calls: Payload, conversation_id: str | None = None) -> Payload:
    return {
        "kind": "assistant_chunk",
        "schema_version": 2,
        "agent": agent,
        "conversation_id": conversation_id,
        "iteration": iteration,
        "text": text,
        "tool_calls": list(calls),
        "stop_reason": "toolUse" if calls else "endTurn",
    }


def results(agent: str, iteration: int, *brought: Payload, conversation_id: str | None = None) -> Payload:
    return {
        "kind": "assistant_chunk_results",
        "schema_version": 2,
        "agent": agent,
        "conversation_id": conversation_id,
        "iteration": iteration,
        "results": list(brought),
    }


def asked(id_: str, name: str, server: str | None = "tools", **arguments: Any) -> Payload:
    return {"id": id_, "server": server, "name": name, "arguments": arguments}


def brought(id_: str, name: str, text: str, server: str | None = "tools", *, is_error: bool = False) -> Payload:
    return {"id": id_, "server": server, "name": name, "is_error": is_error, "text": text, "truncated": False}


# --- transcripts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_call_reads_like_the_conversation_between_agent_and_tools(version: str, tmp_path: Path) -> None:
    script = script_of(solo=[ADD, call_tools([("tools__fail", {"message": "no"})]), say("It is 3.")])
    async with stage(tmp_path, script) as staged:
        watched = await watch(staged.url("solo"), "1 + 2?", version=version, conversation_id="c-1")

    def said(*rest: Any) -> Payload:
        return chunk("solo", *rest, conversation_id="c-1")

    def got(*rest: Any) -> Payload:
        return results("solo", *rest, conversation_id="c-1")

    assert watched.story == [
        "solo step 1 (llm)",
        said(1, "Let me see.", asked("call_1_1", "add", a=1, b=2)),
        "solo step 2 (tool)",
        "tools/add: started",
        "tools/add: completed",
        got(1, brought("call_1_1", "add", "3")),
        "solo step 3 (llm)",
        said(2, "", asked("call_2_1", "fail", message="no")),
        "solo step 4 (tool)",
        "tools/fail: started",
        "tools/fail: failed",
        got(2, brought("call_2_1", "fail", "no", is_error=True)),
        "solo step 5 (llm)",
        said(3, "It is 3."),
    ]
    assert (watched.text, watched.is_error) == ("It is 3.", False)


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_parallel_tool_calls_are_one_round_with_an_end_for_every_start(version: str, tmp_path: Path) -> None:
    echoes = call_tools(
        [("tools__echo", {"text": "a"}), ("tools__echo", {"text": "b"}), ("tools__fail", {"message": "c"})]
    )
    async with stage(tmp_path, script_of(solo=[echoes, say("done")])) as staged:
        watched = await watch(staged.url("solo"), version=version)

    begin, end = watched.progress.index("solo step 2 (tool)"), watched.progress.index("solo step 3 (llm)")
    assert sorted(watched.progress[begin + 1 : end]) == sorted(
        ["tools/echo: started", "tools/echo: completed"] * 2 + ["tools/fail: started", "tools/fail: failed"]
    )
    assert watched.payloads[1] == results(
        "solo",
        1,
        brought("call_1_1", "echo", "a"),
        brought("call_1_2", "echo", "b"),
        brought("call_1_3", "fail", "c", is_error=True),
    )


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_progress_in_a_peers_words_stands_under_the_tool_that_makes_it(version: str, tmp_path: Path) -> None:
    """A remote Pallas is known by its words; what other servers say of their progress stands on one line."""
    theirs = ["half", "far step 1 (llm)", "web/find: started", "two\nlines: started", "completed"]
    emit = call_tools([("tools__emit", {"logs": [], "progress": theirs})])
    async with stage(tmp_path, script_of(solo=[emit, say("done")])) as staged:
        watched = await watch(staged.url("solo"), version=version)

    assert watched.progress == [
        "solo step 1 (llm)",
        "solo step 2 (tool)",
        "tools/emit: started",
        "tools/emit: half",
        "tools/emit: far step 1 (llm)",
        "tools/emit: web/find: started",
        'tools/emit: "completed"',
        "tools/emit: completed",
        "solo step 3 (llm)",
    ]


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_the_agents_of_a_chain_speak_under_their_own_names(version: str, tmp_path: Path) -> None:
    script = script_of(drafter=[ADD, say("It is 3.")], editor=[say("It is three.")])
    async with stage(tmp_path, script, {"pipeline": Agent(source=PIPELINE)}) as staged:
        watched = await watch(staged.url("pipeline"), version=version)

    assert watched.story == [
        "drafter step 1 (llm)",
        chunk("drafter", 1, "Let me see.", asked("call_1_1", "add", a=1, b=2)),
        "drafter step 2 (tool)",
        "tools/add: started",
        "tools/add: completed",
        results("drafter", 1, brought("call_1_1", "add", "3")),
        "drafter step 3 (llm)",
        chunk("drafter", 2, "It is 3."),
        "editor step 1 (llm)",
        chunk("editor", 1, "It is three."),
    ]
    assert watched.text == "It is three."
    assert (watched.call["agent"], watched.call["iterations"]) == ("pipeline", 3)


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_an_agent_used_as_a_tool_speaks_under_its_own_name_and_the_served_one_under_the_hosted(
    version: str, tmp_path: Path
) -> None:
    ask_scout = call_tools([("agent__scout", {"message": "find it"})])
    script = script_of(desk=[ask_scout, say("Found it.")], scout=[ADD, say("It is 3.")])
    async with stage(tmp_path, script, {"helpdesk": Agent(source=DESK)}) as staged:
        watched = await watch(staged.url("helpdesk"), version=version)

    assert watched.story == [
        "helpdesk step 1 (llm)",
        chunk("helpdesk", 1, "", asked("call_1_1", "agent__scout", None, message="find it")),
        "helpdesk step 2 (tool)",
        "scout step 1 (llm)",
        chunk("scout", 1, "Let me see.", asked("call_2_1", "add", a=1, b=2)),
        "scout step 2 (tool)",
        "tools/add: started",
        "tools/add: completed",
        results("scout", 1, brought("call_2_1", "add", "3")),
        "scout step 3 (llm)",
        chunk("scout", 2, "It is 3."),
        results("helpdesk", 1, brought("call_1_1", "agent__scout", "It is 3.", None)),
        "helpdesk step 3 (llm)",
        chunk("helpdesk", 2, "Found it."),
    ]
    assert watched.call["iterations"] == 4


@pytest.mark.parametrize("connect", EACH_ERA)
async def test_the_sdks_client_is_told_through_its_callbacks(connect: Connect, tmp_path: Path) -> None:
    log = ProgressLog()
    async with (
        stage(tmp_path, script_of(solo=[ADD, say("It is 3.")])) as staged,
        connect(staged.url("solo")) as client,
    ):
        meta = {"io.modelcontextprotocol/logLevel": "info"}
        answer = await client.call_tool("solo", {"message": "1 + 2?"}, progress_callback=log, meta=meta)
        kinds = [entry.data["kind"] for entry in client.logs]

    assert log.events == [
        (1, None, "solo step 1 (llm)"),
        (2, None, "solo step 2 (tool)"),
        (3, None, "tools/add: started"),
        (4, 4, "tools/add: completed"),
        (5, None, "solo step 3 (llm)"),
    ]
    assert kinds == ["assistant_chunk", "assistant_chunk_results", "assistant_chunk"]
    assert text_of(answer) == "It is 3."


async def test_a_long_tool_result_is_cut_for_the_client_but_not_for_the_model(tmp_path: Path) -> None:
    text = "x" * 5000

    def solo(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say(f"read it {'all' if text in str(request.tool_results) else 'in part'}")
        return call_tools([("tools__echo", {"text": text})])

    async with stage(tmp_path, script_of(solo=solo)) as staged:
        watched = await watch(staged.url("solo"))

    assert watched.payloads[1]["results"] == [{**brought("call_1_1", "echo", "x" * 4000), "truncated": True}]
    assert watched.text == "read it all"


# --- who is told what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_without_a_token_there_is_no_progress(version: str, tmp_path: Path) -> None:
    meta = watching_meta(version)
    del meta["progressToken"]
    async with stage(tmp_path, script_of(solo=[ADD, say("It is 3.")])) as staged:
        watched = await watch(staged.url("solo"), version=version, meta=meta)

    assert watched.progress == []
    assert [payload["kind"] for payload in watched.payloads] == [
        "assistant_chunk",
        "assistant_chunk_results",
        "assistant_chunk",
    ]


async def test_a_2026_client_gets_messages_only_of_the_level_it_asks_for(tmp_path: Path) -> None:
    levels = {None: 0, "debug": 3, "info": 3, "notice": 0, "warning": 0, "emergency": 0}
    async with stage(tmp_path, script_of(solo=[ADD, say("It is 3.")] * len(levels))) as staged:
        for level, count in levels.items():
            asked = {"io.modelcontextprotocol/logLevel": level} if level else {}
            watched = await watch(
                staged.url("solo"), meta={"progressToken": "token-1", "pallas/stream": "delta", **asked}
            )
            kinds = [one["kind"] == "assistant_delta" for one in watched.payloads]
            assert (level, kinds.count(False), any(kinds)) == (level, count, bool(count))
            assert len(watched.progress) == 5


@pytest.mark.parametrize("version", INITIALIZE_VERSIONS)
async def test_an_older_client_gets_messages_unless_it_has_set_a_higher_level(version: str, tmp_path: Path) -> None:
    async with (
        stage(tmp_path, script_of(solo=[say("hello"), say("again")])) as staged,
        raw_client(staged.url("solo"), protocol_version=version) as client,
    ):
        await client.initialize()
        reply = await client.call_tool("send_message", {"message": "hi"})
        await client.request("logging/setLevel", {"level": "error"})
        quiet = await client.call_tool("send_message", {"message": "hi"})

    check_order(reply)
    assert [one["params"]["data"] for one in reply.notifications] == [chunk("solo", 1, "hello")]
    assert list(quiet.notifications) == []


# --- live text -------------------------------------------------------------------------------------------------------


def deltas_of(watched: Watched, agent: str = "solo", iteration: int = 1) -> list[str]:
    return [
        one["text"]
        for one in watched.payloads
        if (one["kind"], one["agent"], one["iteration"]) == ("assistant_delta", agent, iteration)
    ]


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_live_text_arrives_while_the_model_is_still_speaking(version: str, tmp_path: Path) -> None:
    gate = Gate()
    script = script_of(solo=[stream(["Once ", "upon ", "a time."], gate)])
    meta = {"pallas/stream": "delta", **watching_meta(version)}
    async with (
        stage(tmp_path, script) as staged,
        calling(staged.url("solo"), version=version, meta=meta) as call,
    ):
        (first_told, second_told) = await call[1].wait_for_notifications(2)
        gate.open()
        reply = await call[1].reply()

    check_order(reply)
    assert first_told["params"]["message"] == "solo step 1 (llm)"
    assert second_told["params"]["data"] == {
        "kind": "assistant_delta",
        "schema_version": 2,
        "agent": "solo",
        "conversation_id": None,
        "iteration": 1,
        "text": "Once ",
    }
    payloads = [one["params"]["data"] for one in reply.notifications if one["method"] == "notifications/message"]
    assert payloads[-1] == chunk("solo", 1, "Once upon a time.")
    assert "".join(one["text"] for one in payloads[:-1]) == "Once upon a time."


async def test_live_text_is_put_together_to_at_most_ten_notifications_a_second(tmp_path: Path) -> None:
    pieces = [f"word{number} " for number in range(300)]
    async with stage(tmp_path, script_of(solo=[stream(pieces)])) as staged:
        watched = await watch(staged.url("solo"), meta={**watching_meta(MODERN_VERSION), "pallas/stream": "delta"})

    deltas = deltas_of(watched)
    assert "".join(deltas) == "".join(pieces)
    assert len(deltas) <= 2 + 10 * watched.call["duration_seconds"]


async def test_an_agent_that_works_twice_in_a_call_streams_the_text_of_each_turn_as_that_turns(tmp_path: Path) -> None:
    source = PIPELINE.replace('["drafter", "editor"]', '["drafter", "editor", "drafter"]')

    def drafter(request: LlmRequest) -> Turn:
        return (
            say(f"drafted {request.last_user_text}") if request.tool_results or "edit" in str(request.messages) else ADD
        )

    script = script_of(drafter=drafter, editor=[say("edited")])
    async with stage(tmp_path, script, {"pipeline": Agent(source=source)}) as staged:
        watched = await watch(staged.url("pipeline"), meta={**watching_meta(MODERN_VERSION), "pallas/stream": "delta"})

    told = [(one["kind"], one["agent"], one["iteration"], one.get("text")) for one in watched.payloads]
    chunks = [one[1:] for one in told if one[0] == "assistant_chunk"]
    assert [one[2] for one in chunks] == ["Let me see.", "drafted go", "edited", "drafted edited"]
    assert [one[1:] for one in told if one[0] == "assistant_delta"] == chunks


async def test_live_text_is_sent_only_on_request(tmp_path: Path) -> None:
    others: list[dict[str, object]] = [{}, {"pallas/stream": "chunks"}, {"pallas/stream": True}]
    async with stage(tmp_path, script_of(solo=[stream(["It ", "is 3."])] * 3)) as staged:
        for other in others:
            watched = await watch(staged.url("solo"), meta={**watching_meta(MODERN_VERSION), **other})
            assert [payload["kind"] for payload in watched.payloads] == ["assistant_chunk"]


async def test_what_a_model_thinks_is_not_sent(tmp_path: Path) -> None:
    model = "moonshotai/kimi-k2-thinking"  # fast-agent knows that this one streams its reasoning apart
    script = script_of(
        solo=[
            call_tools([("tools__add", {"a": 1, "b": 2})], thinking="secret thoughts"),
            thinking(["secret ", "again"], ["It ", "is 3."]),
        ]
    )
    agents = {"solo": Agent(["tools"], model=f"generic.{model}")}
    async with stage(tmp_path, script, agents) as staged:
        watched = await watch(staged.url("solo"), meta={**watching_meta(MODERN_VERSION), "pallas/stream": "delta"})

    assert (deltas_of(watched), "".join(deltas_of(watched, iteration=2))) == ([], "It is 3.")
    assert watched.payloads[-1] == chunk("solo", 2, "It is 3.")
    assert "secret" not in json.dumps(watched.reply.messages)


def thinking(thoughts: Sequence[str], pieces: Sequence[str]) -> Reply:
    """A streamed answer whose reasoning comes first, in the field that OpenAI-compatible servers use for it."""
    deltas = [{"reasoning_content": one} for one in thoughts] + [{"content": one} for one in pieces]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "thinker"}
    events = [json.dumps({**head, "choices": [choice]}) for choice in choices]
    return Reply(200, "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode(), "text/event-stream")


# --- the facts of a call ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_result_says_what_the_call_was_and_what_it_cost(version: str, tmp_path: Path) -> None:
    first = call_tools([("tools__add", {"a": 1, "b": 2})], usage=Usage(prompt=100, completion=20, cached=40))
    last = say("It is 3.", usage=Usage(prompt=150, completion=30, cached=100, reasoning=7))
    async with stage(tmp_path, script_of(solo=[first, last])) as staged:
        watched = await watch(staged.url("solo"), version=version, conversation_id="c-1")

    facts = dict(watched.call)
    assert facts.pop("duration_seconds") > 0
    assert len(facts.pop("call_id")) > 8
    assert facts == {
        "agent": "solo",
        "conversation_id": "c-1",
        "stop_reason": "endTurn",
        "iterations": 2,
        "usage": {"input": 110, "output": 50, "cache_read": 140, "cache_write": 0, "reasoning": 7},
    }


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_failed_call_says_so_and_counts_what_it_had_cost_until_then(version: str, tmp_path: Path) -> None:
    async with stage(tmp_path, script_of(solo=[ADD, fail(400)])) as staged:
        watched = await watch(staged.url("solo"), version=version)
        await until_idle(staged.served)
        tokens = staged.served.metric("pallas_llm_tokens_total", agent="solo", model="test-model", kind="input")

    assert watched.is_error
    assert watched.call["stop_reason"] == "llm_error"
    assert watched.call["iterations"] == 2
    assert watched.call["usage"] == {"input": 10, "output": 5, "cache_read": 0, "cache_write": 0, "reasoning": 0}
    assert tokens == 10
    assert watched.progress[-1] == "solo step 3 (llm)"


# --- clients that do not read ----------------------------------------------------------------------------------------


async def test_agents_go_on_while_their_client_does_not_read(tmp_path: Path) -> None:
    text = "x" * 250_000  # over all turns far more than the buffers on the way hold

    def desk(request: LlmRequest) -> Turn:
        rounds = turns_so_far(request)
        return (
            say("done") if rounds == 8 else call_tools([("agent__scout", {"message": f"{rounds}.{n}"}) for n in "abcd"])
        )

    scout: list[Turn] = [call_tools([("tools__add", {"a": 1, "b": 2})], text=text), say("found")]
    async with (
        stage(tmp_path, script_of(desk=desk, scout=scout), {"desk": Agent(source=DESK)}) as staged,
        raw_client(staged.url("desk"), protocol_version=MODERN_VERSION) as client,
    ):
        params = tool_params("send_message", {"message": "go"})
        body = client.body_of("tools/call", params, meta=watching_meta(MODERN_VERSION), request_id=1)
        headers = client.headers_of("tools/call", params)
        async with client.http.stream("POST", client.url, json=body, headers=headers) as response:
            await staged.llm.wait_for_requests(1 + 8 * (1 + 4 * 2), timeout_seconds=30)
            await until_idle(staged.served)
            lines = [line async for line in response.aiter_lines()]

    messages = [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]
    payloads = [one["params"]["data"] for one in messages if one.get("method") == "notifications/message"]
    assert [one["text"] for one in payloads if one["agent"] == "scout" and one.get("tool_calls")] == [text] * 32
    assert messages[-1]["result"]["content"] == [{"type": "text", "text": "done"}]
