"""Agents as models: the official OpenAI client, and the very bytes, against `/v1`."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.e2e.openai_stage import ON, PDF, PNG, client_of, errors_of, said, talking
from tests.support.fair_time import hastened
from tests.support.gateway import Agent, running, until_idle, write_project
from tests.support.guarded import STATIC_KEY, guarded, static_key
from tests.support.leaks import assert_nothing_left, snapshot
from tests.support.waiting import eventually

IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}}
TOOL = {"type": "function", "function": {"name": "f"}}


def pdf_part(content: bytes = b"%PDF-1.7 not really", **more: object) -> dict[str, Any]:
    data = f"data:application/pdf;base64,{base64.b64encode(content).decode()}"
    return {"type": "file", "file": {"file_data": data, **more}}


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


async def test_any_openai_client_can_talk_to_the_agents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pallas.calls")
    async with talking(tmp_path) as (_, plot, client):
        models = [model async for model in client.models.list()]
        one = await client.models.retrieve("solo")
        whole = await client.chat.completions.create(
            model="solo", messages=said("hello", "hi", "and now?"), metadata={"conversation_id": "c-1"}
        )
        plot.gate.open()
        ask = client.chat.completions.create(
            model="solo", messages=said("slowly"), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in await ask]

    assert [model.id for model in models] == ["solo", "eyes", "desk", "pipeline", "strict", "hasty"]
    assert one.model_dump(exclude={"created"}, exclude_none=True) == {
        "id": "solo",
        "object": "model",
        "owned_by": "com.example.test",
        "name": "Solo",
        "description": "Adds numbers.",
    }
    assert whole.choices[0].message.content == "heard 3: and now?"
    assert (whole.choices[0].finish_reason, whole.model, whole.object) == ("stop", "solo", "chat.completion")
    assert whole.id == f"chatcmpl-{whole._request_id}"
    assert whole.usage is not None
    assert whole.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 20,
        "completion_tokens": 7,
        "total_tokens": 27,
        "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert text_of(chunks) == "Once upon a time."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-2:] == [None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    line = next(vars(record) for record in caplog.records if record.message == "call ended")
    assert (line["call_id"], line["conversation_id"], line["outcome"]) == (whole._request_id, "c-1", "ok")


async def test_text_comes_as_the_model_produces_it_and_the_served_agent_alone_is_heard(tmp_path: Path) -> None:
    async with talking(tmp_path) as (_, plot, client):
        create = client.chat.completions.create
        async with await create(model="solo", messages=said("slowly"), stream=True) as chunks:
            first = [await anext(chunks), await anext(chunks)]
            held = [*plot.gate.passed]
            plot.gate.open()
            rest = [chunk async for chunk in chunks]
        streamed = {
            (model, told): text_of([c async for c in await create(model=model, messages=said(told), stream=True)])
            for model, told in [("solo", "add"), ("desk", "ask"), ("pipeline", "go")]
        }
        whole = {
            (model, told): (await create(model=model, messages=said(told))).choices[0].message.content
            for model, told in streamed
        }
        for_a_program = await create(model="solo", messages=said("add"), response_format={"type": "json_object"})
        cut_short = await create(model="solo", messages=said("long"))

    assert (text_of(first), held) == ("Once ", [])
    assert text_of(rest) == "upon a time."
    assert streamed == whole
    assert list(streamed.values()) == ["Let me see.\n\nIt is 3.", "I ask.\n\nIt is 3.", "heard 1: psst"]
    assert for_a_program.choices[0].message.content == "It is 3."
    assert cut_short.choices[0].finish_reason == "length"


async def test_images_and_parameters_reach_the_model(tmp_path: Path) -> None:
    parts: list[Any] = [{"type": "text", "text": "What is"}, IMAGE, {"type": "text", "text": "this?"}]
    async with talking(tmp_path) as (staged, _, client):
        await client.chat.completions.create(
            model="eyes", messages=[{"role": "user", "content": parts}, *said("Was?", "A cat.", "Sure?")[1:]]
        )
        await client.chat.completions.create(model="eyes", messages=[{"role": "user", "content": parts}])
        sent = [request.messages[1:] for request in staged.llm.requests]
        asked: dict[str, Any] = {
            "temperature": 0.25,
            "top_p": 0.5,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "seed": 7,
            "stop": ["END"],
            "response_format": {"type": "json_object"},
        }
        await client.chat.completions.create(
            model="solo",
            messages=[{"role": "system", "content": "Be a cat."}, *said("hi")],
            max_completion_tokens=77,
            extra_body={"top_k": 5},
            **asked,
        )
        request = staged.llm.requests[-1]
        with pytest.raises(openai.BadRequestError) as blind:
            await client.chat.completions.create(model="strict", messages=[{"role": "user", "content": parts}])

    assert {name: request.body.get(name) for name in asked} == asked
    assert (request.body["max_tokens"], request.body["top_k"]) == (77, 5)
    assert request.messages[0]["content"] == "You are solo.\n\nBe a cat."
    images = [part for turn in sent for message in turn for part in message["content"] if "image_url" in part]
    assert [image["image_url"]["url"] for image in images] == [f"data:image/png;base64,{PNG}"] * 2
    assert errors_of(blind.value) == (400, "invalid_request_error", "images_unsupported", None)


async def test_pdfs_reach_a_model_that_takes_documents_and_are_refused_for_another(tmp_path: Path) -> None:
    async with talking(tmp_path) as (staged, _, client):
        ask = client.chat.completions.create
        named: Any = pdf_part(filename="a.pdf")
        nameless: Any = pdf_part()
        earlier: Any = [{"role": "user", "content": [named]}, {"role": "assistant", "content": "Read."}]
        asked: Any = {"role": "user", "content": [{"type": "text", "text": "And this?"}, nameless]}
        answer = await ask(model="eyes", messages=[*earlier, asked])
        sent = staged.llm.requests[-1].documents
        with pytest.raises(openai.BadRequestError) as closed:
            await ask(model="strict", messages=[{"role": "user", "content": [named]}])
    assert answer.choices[0].message.content
    assert sent == [("a.pdf", PDF), ("document.pdf", PDF)]
    assert errors_of(closed.value) == (400, "invalid_request_error", "images_unsupported", None)


# What goes wrong


CONTENT = "messages[0].content"


def holding(part: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, str | None]]] = {
    "no model": ({"model": None}, ("bad_input", "model")),
    "no messages": ({"messages": []}, ("bad_input", "messages")),
    "messages that are none": ({"messages": ["hi"]}, ("bad_input", "messages[0].role")),
    "a role nobody has": ({"messages": [{"role": "robot", "content": "x"}]}, ("bad_input", "messages[0].role")),
    "no content": ({"messages": [{"role": "user"}]}, ("bad_input", CONTENT)),
    "half an emoji": ({"messages": said("\ud83d")}, ("bad_input", CONTENT)),
    "the assistant's turn": ({"messages": said("hi", "hello")}, ("bad_input", "messages")),
    "a sound": (holding({"type": "input_audio", "input_audio": {}}), ("bad_input", CONTENT)),
    "a part without text": (holding({"type": "text"}), ("bad_input", CONTENT)),
    "an image elsewhere": (holding({**IMAGE, "image_url": {"url": "http://169.254.169.254/"}}), ("bad_image", CONTENT)),
    "a file that is no image": (
        holding({**IMAGE, "image_url": "data:image/png;base64,JVBERi0="}),
        ("bad_image", CONTENT),
    ),
    "an image that is none": (holding({**IMAGE, "image_url": "data:image/png;base64,%%%"}), ("bad_image", CONTENT)),
    "a file by its id": (holding({"type": "file", "file": {"file_id": "file-1"}}), ("bad_image", CONTENT)),
    "a file that is no PDF": (holding(pdf_part(b"PK a zip")), ("bad_image", CONTENT)),
    "a file whose name is no text": (holding(pdf_part(filename=0)), ("bad_image", CONTENT)),
    "a file without a file": (holding({"type": "file"}), ("bad_image", CONTENT)),
    "tools of which one is required": ({"tools": [TOOL], "tool_choice": "required"}, ("bad_input", "tools")),
    "tools of which one is named": ({"tools": [TOOL], "tool_choice": TOOL}, ("bad_input", "tools")),
    "a function by name": ({"functions": [{}], "function_call": {"name": "f"}}, ("bad_input", "function_call")),
    "two answers": ({"n": 2}, ("bad_input", "n")),
    "a voice": ({"modalities": ["text", "audio"]}, ("bad_input", "modalities")),
    "probabilities": ({"logprobs": True}, ("bad_input", "logprobs")),
    "a stream, perhaps": ({"stream": "yes"}, ("bad_input", "stream")),
    "stream options that are none": ({"stream_options": True}, ("bad_input", "stream_options")),
    "a temperature out of range": ({"temperature": 3}, ("bad_params", "temperature")),
    "a schema by no name": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "two words", "schema": {}}}},
        ("bad_params", "response_format"),
    ),
    "a schema without a name": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        ("bad_params", "response_format.json_schema.name"),
    ),
    "a system text for an agent that takes none": (
        {"model": "strict", "messages": [{"role": "system", "content": "Be a cat."}, *said("hi")]},
        ("bad_params", CONTENT),
    ),
    "a parameter for an agent that takes none": ({"model": "strict", "top_p": 0.5}, ("bad_params", "top_p")),
    "an answer of no length": ({"max_completion_tokens": 0}, ("bad_params", "max_completion_tokens")),
    "a limit by its older name": ({"max_tokens": 2**63}, ("bad_params", "max_tokens")),
    "what is not a number": ({"top_p": float("nan")}, ("bad_params", "top_p")),
}
TAKEN: dict[str, dict[str, Any]] = {
    "nothing but nulls": {"temperature": None, "stop": None, "tools": None, "stream": None, "metadata": None},
    "what clients send anyway": {
        "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "stop": [], "n": 1, "user": "ann",
        "logprobs": False, "modalities": ["text"], "store": False, "parallel_tool_calls": True,
        "metadata": {"conversation_id": "x" * 2000},
    },
    "functions that need not be called": {"functions": [{"name": "f"}], "function_call": "auto"},
    "a talk with another model's tools": {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "3"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]},
            {"role": "user", "content": "please"},
        ]
    },
}  # fmt: skip


OPEN_WEBUI_TOOLS = [f"view_{number}" for number in range(36)]
"""As many tools as Open WebUI 0.12.4 sends."""


@pytest.mark.parametrize("stream", [True, False])
async def test_tools_that_open_webui_sends_with_every_message_are_ignored_and_named(
    stream: bool, tmp_path: Path
) -> None:
    function = {"description": "A tool of the page.", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": {"name": name, **function}} for name in OPEN_WEBUI_TOOLS]
    body = {"model": "solo", "messages": said("add"), "stream": stream, "tools": tools}
    async with talking(tmp_path) as (staged, _, _), httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{staged.served.base_url}/v1/chat/completions", json=body)
        sent = staged.llm.requests[0].body

    lines = answer.text.splitlines() if stream else [f"data: {answer.text}"]
    bodies = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for body in bodies for choice in body["choices"]]
    texts = [choice.get("delta", choice.get("message", {})).get("content", "") for choice in choices]
    assert answer.status_code == 200
    assert "".join(texts) == "Let me see.\n\nIt is 3."
    assert bodies[-1]["pallas"] == {"params": {"ignored": ["tools"]}}
    assert "tools__add" in [tool["function"]["name"] for tool in sent["tools"]]
    assert not set(OPEN_WEBUI_TOOLS) & {tool["function"]["name"] for tool in sent["tools"]}


async def test_what_cannot_be_answered_is_refused_with_what_to_change(tmp_path: Path) -> None:
    as_json = {"content-type": "application/json"}
    async with (
        talking(tmp_path, max_body_bytes=4000) as (staged, _, client),
        httpx.AsyncClient(headers=as_json) as http,
    ):
        url = f"{staged.served.base_url}/v1/chat/completions"

        async def post(changes: dict[str, Any]) -> httpx.Response:
            return await http.post(url, content=json.dumps({"model": "solo", "messages": said("hi"), **changes}))

        refused = {what: await post(changes) for what, (changes, _) in REFUSED.items()}
        assert staged.llm.requests == []
        taken = {what: await post(changes) for what, changes in TAKEN.items()}
        raw = [await http.post(url, content=body) for body in ("{", "[]", "[" * 3000, "x" * 5000)]
        with pytest.raises(openai.NotFoundError) as nobody:
            await client.chat.completions.create(model="nobody", messages=said("hi"))
        with pytest.raises(openai.NotFoundError) as not_there:
            await client.models.retrieve("nobody")
        elsewhere = await http.get(f"{staged.served.base_url}/v1/embeddings")
        by_get = await http.get(url)
        foreign = [
            await http.get(f"{staged.served.base_url}/v1/models", headers=headers)
            for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"})
        ]
        counted = staged.served.metric("pallas_calls_refused_total", agent="solo", reason="bad_input")

    said_of = {what: response.json()["error"] for what, response in refused.items()}
    assert {what: response.status_code for what, response in refused.items()} == dict.fromkeys(REFUSED, 400)
    assert {what: (one["code"], one["param"]) for what, one in said_of.items()} == {
        what: expected for what, (_, expected) in REFUSED.items()
    }
    assert {one["type"] for one in said_of.values()} == {"invalid_request_error"}
    told = said_of["a temperature out of range"]["message"]
    assert told.startswith("temperature must be 0 to 2. Callers of this agent may set: temperature (0 to 2), top_p (0 ")
    assert "max_completion_tokens (a whole number from 1 to 2^63 - 1), stop" in told
    assert told.endswith("response_format (an object), tool_choice (auto, none, required or an object).")
    assert (
        counted == sum(code == "bad_input" for _, (code, _) in REFUSED.values()) - 1
    )  # without a model it is nobody's
    assert {what: response.status_code for what, response in taken.items()} == dict.fromkeys(TAKEN, 200)
    assert [m["content"] for m in staged.llm.requests[-1].messages[1:]] == ["hi", "I will not.", "please"]
    assert [response.status_code for response in raw] == [400, 400, 400, 413]
    assert errors_of(nobody.value) == (404, "invalid_request_error", "model_not_found", "model")
    assert errors_of(not_there.value) == errors_of(nobody.value)
    assert elsewhere.status_code == 404
    assert (by_get.status_code, by_get.headers["allow"]) == (405, "POST")
    assert [response.status_code for response in foreign] == [421, 403]
    everything = [*refused.values(), *raw, elsewhere, by_get, *foreign]
    assert all(set(one.json()["error"]) == {"message", "type", "param", "code"} for one in everything)
    assert all(one.headers["x-request-id"] for one in everything)


async def test_what_fails_has_its_own_status_or_ends_the_stream_that_has_begun(tmp_path: Path) -> None:
    async with talking(tmp_path) as (staged, _, client), client_of(staged.served.base_url, retries=2) as stubborn:
        failures: dict[tuple[str, bool], tuple[Any, ...]] = {}
        for told, model in [("fail", "solo"), ("hang", "hasty")]:
            for streamed in (False, True):
                calling = stubborn.chat.completions.create(model=model, messages=said(told), stream=streamed)
                with pytest.raises(openai.InternalServerError) as failure:
                    await (hastened(calling) if told == "hang" else calling)
                failures[told, streamed] = errors_of(failure.value)
        broken = await client.chat.completions.create(model="solo", messages=said("cut"), stream=True)
        chunks: list[ChatCompletionChunk] = []
        with pytest.raises(openai.APIError) as in_the_stream:
            await _read(broken, chunks)
        asked = [request.last_user_text for request in staged.llm.requests]

    assert failures == {
        ("fail", False): (502, "server_error", "llm_error", None),
        ("fail", True): (502, "server_error", "llm_error", None),
        ("hang", False): (504, "server_error", "deadline", None),
        ("hang", True): (504, "server_error", "deadline", None),
    }
    assert asked.count("fail") == 2  # the client would try again by itself, and an agent may have done things
    assert text_of(chunks) == "once upon"
    assert in_the_stream.value.code == "llm_error"
    assert "The model could not answer" in in_the_stream.value.message


async def test_the_bytes_of_a_stream(tmp_path: Path) -> None:
    async with talking(tmp_path, heartbeat_seconds=0.2) as (staged, plot, _), httpx.AsyncClient(timeout=60) as http:
        body = {"model": "solo", "messages": said("slowly"), "stream": True, "stream_options": {"include_usage": True}}
        url = f"{staged.served.base_url}/v1/chat/completions"
        async with http.stream("POST", url, json=body) as response:
            lines = response.aiter_lines()
            before: list[str] = []
            while not any('"Once "' in line for line in before):  # a busy machine is silent before it, too
                before += [line async for line in _until(lines, ": keep-alive")]
            plot.gate.open()
            rest = [line async for line in lines]

    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store, no-transform"
    assert response.headers["x-accel-buffering"] == "no"
    data = [line.removeprefix("data: ") for line in [*before, *rest] if line.startswith("data:")]
    assert data[-1] == "[DONE]"
    assert rest[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(one) for one in data[:-1]]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert [chunk["choices"][0]["delta"] for chunk in chunks[:-1]] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Once "},
        *[{"content": text} for text in _texts(chunks)[2:]],
        {},
    ]
    assert "".join(_texts(chunks)) == "Once upon a time."
    assert {line for line in [*before, *rest] if not line.startswith("data: ")} == {"", ": keep-alive"}


async def _until(lines: Any, last: str) -> AsyncGenerator[str]:
    async for line in lines:
        yield line
        if line == last:
            return


def _texts(chunks: list[dict[str, Any]]) -> list[str]:
    return [
        chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1] if "content" in chunk["choices"][0]["delta"]
    ]


# Limits, leaving, stopping


async def test_a_client_that_leaves_cancels_its_call_and_a_full_gateway_says_when_to_come_back(tmp_path: Path) -> None:
    async with talking(tmp_path, max_in_flight=1, queue_seconds=0) as (staged, plot, client):
        await client.models.list()
        before = snapshot()
        for told, streamed in [("hang", False), ("hang", True), ("slowly", True)]:
            entered = len(plot.gate.entered)
            ask = client.chat.completions.create(model="solo", messages=said(told), stream=streamed)
            call = asyncio.ensure_future(_ask(ask))
            await plot.gate.wait_for_entered(entered + 1)
            with pytest.raises(openai.RateLimitError) as busy:
                await client.chat.completions.create(model="solo", messages=said("hi"), stream=streamed)
            call.cancel()
            await staged.llm.wait_for_aborted(len(staged.llm.requests))
            await until_idle(staged.served)
            await eventually(lambda: not staged.served.gateway.calls.started, what="no call left")
        await assert_nothing_left(before)
        answered = await client.chat.completions.create(model="solo", messages=said("hi"))

    assert errors_of(busy.value) == (429, "rate_limit_error", "busy", None)
    assert busy.value.response.headers["retry-after"] == "5"
    assert answered.choices[0].message.content == "heard 1: hi"


async def _ask(ask: Any) -> None:
    await _read(await ask, [])


async def _read(stream: Any, chunks: list[Any]) -> None:
    async for chunk in stream:
        chunks.append(chunk)  # noqa: PERF401  what came before an error counts


async def test_a_gateway_that_stops_takes_no_more_and_tells_those_it_cuts_off(tmp_path: Path) -> None:
    async with talking(tmp_path, drain_seconds=20) as (staged, plot, client):
        whole = asyncio.ensure_future(client.chat.completions.create(model="solo", messages=said("hang")))
        chunks = await client.chat.completions.create(model="solo", messages=said("slowly"), stream=True)
        first = await anext(chunks)
        await plot.gate.wait_for_entered(2)
        staged.served.stop.set()
        await eventually(lambda: staged.served.gateway.calls.draining, what="the drain")
        with pytest.raises(openai.InternalServerError) as late:
            await client.chat.completions.create(model="solo", messages=said("hi"))
        still = [model.id async for model in client.models.list()]
        with pytest.raises(openai.InternalServerError) as cut_off:
            await hastened(whole)
        with pytest.raises(openai.APIError) as in_the_stream:
            await _read(chunks, [])

    assert first.choices[0].delta.role == "assistant"
    assert errors_of(late.value) == (503, "server_error", "stopping", None)
    assert late.value.response.headers["retry-after"] == "5"
    assert "solo" in still
    assert errors_of(cut_off.value) == (503, "server_error", "stopped", None)
    assert in_the_stream.value.code == "stopped"


# Who may


async def test_a_key_opens_the_agents_it_is_granted_and_no_others(tmp_path: Path) -> None:
    auth = {"tokens": [static_key("run:agents:research", "view:agents:other")], "anonymous": []}
    async with (
        guarded(tmp_path, agents=("research", "other", "secret"), auth=auth, gateway=ON) as g,
        client_of(g.public, STATIC_KEY) as ci,
        client_of(g.public, g.token("run:agents:secret", aud=g.public)) as token,
        client_of(g.public, g.token("run:agents:secret")) as elsewhere,
        client_of(g.public, "sk-made-up") as stranger,
        httpx.AsyncClient(base_url=g.public) as nobody,
    ):
        mine = [model.id async for model in ci.models.list()]
        theirs = [model.id async for model in token.models.list()]
        answered = await ci.chat.completions.create(model="research", messages=said("hi"))
        seen = {
            "may only view": await _refusal(ci, "other"),
            "may not even view": await _refusal(ci, "secret"),
            "not there": await _refusal(ci, "nobody"),
            "a made-up key": await _refusal(stranger, "research"),
            "a token for an agent's own address": await _refusal(elsewhere, "secret"),
        }
        bare = [await nobody.get("/v1/models"), await nobody.post("/v1/chat/completions"), await nobody.get("/v1/x")]
        refused = g.served.metric("pallas_calls_refused_total", agent="other", reason="insufficient_scope")

    assert (mine, theirs) == (["research"], ["secret"])
    assert answered.choices[0].message.content == "hi"
    assert seen == {
        "may only view": (403, "permission_error", "insufficient_scope", None),
        "may not even view": (404, "invalid_request_error", "model_not_found", "model"),
        "not there": (404, "invalid_request_error", "model_not_found", "model"),
        "a made-up key": (401, "authentication_error", "invalid_api_key", None),
        "a token for an agent's own address": (401, "authentication_error", "invalid_api_key", None),
    }
    assert [response.status_code for response in bare] == [401, 401, 401]
    assert {response.headers["www-authenticate"] for response in bare} == {'Bearer realm="pallas-gateway"'}
    assert refused == 1


async def test_callers_without_a_token_do_not_learn_which_agents_exist(tmp_path: Path) -> None:
    auth = {"anonymous": ["run:agents:research"]}
    async with (
        guarded(tmp_path, agents=("research", "secret"), auth=auth, gateway=ON) as g,
        httpx.AsyncClient(base_url=g.public) as http,
    ):
        asked = [{"model": model, "messages": said("hi")} for model in ("research", "secret", "nobody")]
        own, hidden, absent = [await http.post("/v1/chat/completions", json=one) for one in asked]

    assert (own.status_code, hidden.status_code, absent.status_code) == (200, 401, 401)
    assert hidden.headers["www-authenticate"] == absent.headers["www-authenticate"]
    assert hidden.content == absent.content


async def _refusal(client: openai.AsyncOpenAI, model: str) -> tuple[int, str | None, str | None, str | None]:
    with pytest.raises(openai.APIStatusError) as refusal:
        await client.chat.completions.create(model=model, messages=said("hi"))
    return errors_of(refusal.value)


# Where it is


async def test_it_is_off_unless_it_is_switched_on_and_a_reload_switches_it(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"echo": Agent()}, gateway={"allowed_origins": ["https://chat.example"]})
    async with running(project) as served, httpx.AsyncClient(base_url=served.base_url) as http:
        asks = {"origin": "https://chat.example", "access-control-request-method": "POST"}
        stainless = {**asks, "access-control-request-headers": "authorization,content-type,x-stainless-os"}
        off = await http.get("/v1/models")
        project.edit(lambda document: document["gateway"].update(ON))
        await served.reload()
        on = await http.get("/v1/models", headers={"origin": "https://chat.example"})
        preflight = await http.options("/v1/chat/completions", headers=stainless)
        agents = await http.get("/agents/echo/mcp")

    assert (off.status_code, on.status_code, agents.status_code) == (404, 200, 405)
    assert [model["id"] for model in on.json()["data"]] == ["echo"]
    assert preflight.status_code == 200
    assert on.headers["access-control-allow-origin"] == "https://chat.example"
    assert "X-Request-Id" in on.headers["access-control-expose-headers"]


async def test_an_agent_that_a_reload_takes_away_ends_what_it_was_asked(tmp_path: Path) -> None:
    async with talking(tmp_path) as (staged, plot, client):
        create = client.chat.completions.create
        whole = asyncio.ensure_future(create(model="solo", messages=said("hang")))
        async with await create(model="solo", messages=said("slowly"), stream=True) as chunks:
            await plot.gate.wait_for_entered(2)
            staged.served.project.edit(lambda document: document["agents"].pop("solo"))
            await staged.served.reload()
            gone = await _refusal(client, "solo")
            plot.gate.open()
            rest = [chunk async for chunk in chunks]
        answered = await whole

    assert gone == (404, "invalid_request_error", "model_not_found", "model")
    assert answered.choices[0].message.content == "released"
    assert text_of(rest) == "Once upon a time."
