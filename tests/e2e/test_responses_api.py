"""`POST /v1/responses`: the official OpenAI client, the very bytes, and programs of others.

Every answer and event is checked against the types of OpenAI's package by `tests/support/api_types.py`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from tests.e2e.openai_stage import COST, PDF, PNG, client_of, errors_of, said, talking
from tests.support.commands import READY_SECONDS
from tests.support.fair_time import hastened
from tests.support.listener import reserved_port
from tests.support.waiting import WAIT_SECONDS
from tests.support_programs import program

URL = "/v1/responses"
PROXY_KEY = "sk-0123456789abcdef0123456789abcdef01234567"
AS_JSON = {"content-type": "application/json"}
SPENT = {
    "input_tokens": COST.prompt,
    "output_tokens": COST.completion,
    "total_tokens": COST.prompt + COST.completion,
    "input_tokens_details": {"cached_tokens": COST.cached, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": COST.reasoning},
}
IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "low"}
FILE = {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}


def texts_of(events: list[ResponseStreamEvent]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def last_of(events: list[ResponseStreamEvent]) -> Response:
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete", "response.failed")
    return last.response


async def test_the_official_client_gets_a_whole_response(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pallas.calls")
    earlier: Any = said("hello", "hi", "and now?")
    async with talking(tmp_path) as (_, _, client):
        whole = await client.responses.create(
            model="solo", input=earlier, metadata={"conversation_id": "c-1"}, user="ann", store=True, temperature=0.5
        )
        plain = await client.responses.create(model="solo", input="hello")

    assert whole.output_text == "heard 3: and now?"
    assert plain.output_text == "heard 1: hello"
    assert (whole.object, whole.status, whole.model, whole.error) == ("response", "completed", "solo", None)
    assert whole.id == f"resp_{whole._request_id}"
    assert [(item.type, item.status) for item in whole.output if item.type == "message"] == [("message", "completed")]
    dumped = whole.model_dump()
    assert (dumped["usage"], dumped["store"]) == (SPENT, False)
    assert (whole.metadata, whole.user, whole.temperature) == ({"conversation_id": "c-1"}, "ann", 0.5)
    assert dumped["text"]["format"] == {"type": "text"}
    assert "pallas" not in dumped
    line = next(vars(record) for record in caplog.records if record.message == "call ended")
    assert (line["call_id"], line["conversation_id"], line["outcome"]) == (whole._request_id, "c-1", "ok")


async def test_events_come_in_the_order_of_the_specification_while_the_model_speaks(tmp_path: Path) -> None:
    async with talking(tmp_path) as (_, plot, client):
        async with await client.responses.create(model="solo", input="slowly", stream=True) as stream:
            events = [await anext(stream) for _ in range(5)]
            held = [*plot.gate.passed]
            plot.gate.open()
            events += [event async for event in stream]
        async with client.responses.stream(model="solo", input="slowly") as helper:
            helped = await helper.get_final_response()
        asked = await client.responses.create(model="solo", input="add")
        for_a_program = await client.responses.create(
            model="solo", input="add", text={"format": {"type": "json_object"}}
        )
        cut_short = await client.responses.create(model="solo", input="long")
        stopped = [event async for event in await client.responses.create(model="solo", input="long", stream=True)]

    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:5] == ["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"]
    assert set(kinds[5:-4]) <= {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert held == []
    assert texts_of(events) == last_of(events).output_text == "Once upon a time."
    assert last_of(events).model_dump()["usage"] == SPENT
    assert helped.output_text == "Once upon a time."
    assert asked.output_text == "Let me see.\n\nIt is 3."
    assert for_a_program.output_text == "It is 3."
    for partial in (cut_short, last_of(stopped)):
        assert (partial.status, partial.output_text[:6]) == ("incomplete", "so far")
        assert partial.model_dump()["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_every_form_of_input_reaches_the_model(tmp_path: Path) -> None:
    tool: Any = {"type": "function", "name": "f", "parameters": {}, "strict": False}
    parts = [{"type": "input_text", "text": "What is"}, IMAGE, FILE]
    items: Any = [
        {"role": "developer", "content": "Purr."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
        {
            "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "Hello.", "annotations": []}],
        },
        {"role": "user", "content": parts},
    ]  # fmt: skip
    schema: Any = {"type": "json_schema", "name": "cat", "schema": {"type": "object"}, "strict": True}
    async with talking(tmp_path) as (staged, _, client):
        answer = await client.responses.create(
            model="eyes",
            input=items,
            instructions="Be a cat.",
            max_output_tokens=77,
            top_p=0.5,
            reasoning={"effort": "low"},
            tools=[tool],
            text={"format": schema, "verbosity": "low"},
            extra_body={"functions": [{}], "max_tool_calls": 1, "reasoning_effort": "low"},
        )
        request = staged.llm.requests[-1]

    assert [message["content"] for message in request.messages[:3]] == [
        "You are eyes.\n\nBe a cat.\n\nPurr.",
        "Hi.",
        "Hello.",
    ]
    assert request.images == [("image/png", PNG)]
    assert request.documents == [("a.pdf", PDF)]
    assert (request.body["max_tokens"], request.body["top_p"]) == (70, 0.5)
    assert request.body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "cat", "schema": {"type": "object"}, "strict": True},
    }
    assert answer.model_dump()["text"]["format"]["type"] == "json_schema"
    ignored = ["tools", "functions", "max_tool_calls", "reasoning_effort", "reasoning.effort"]
    assert answer.model_dump()["pallas"] == {"params": {"ignored": ignored, "changed": {"max_output_tokens": 70}}}


# What goes wrong


def user(kind: str, **part: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": kind, **part}]}]}


def formatted(**changes: Any) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}, **changes}}}


OFFERED = (
    "Callers of this agent may set: temperature (0 to 2), top_p (0 to 1), top_k (a whole number from 1 to 2^63 - 1), "
    "max_output_tokens (a whole number from 1 to 2^63 - 1), stop (1 to 4 texts), presence_penalty (-2 to 2), "
    "frequency_penalty (-2 to 2), seed (a whole number of 64 bits), text.format (an object), instructions (a text)."
)
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "bad_input", "input"),
    ({"input": []}, "bad_input", "input"),
    ({"input": said("hi", "hello")}, "bad_input", "input"),
    ({"input": [*said("hi"), {"type": "function_call_output", "call_id": "c", "output": "3"}]}, "bad_input", "input"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}, *said("hi")]}, "bad_input", "input[0]"),
    (user("input_audio", input_audio={}), "bad_input", "input[0].content"),
    (user("input_image", image_url="http://169.254.169.254/"), "bad_image", "input[0].content"),
    (user("input_image", file_id="f"), "bad_image", "input[0].content"),
    (user("input_file", file_url="http://169.254.169.254/"), "bad_image", "input[0].content"),
    ({"previous_response_id": "resp_1"}, "bad_input", "previous_response_id"),
    ({"conversation": {"id": "conv_1"}}, "bad_input", "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "bad_input", "prompt"),
    ({"background": True}, "bad_input", "background"),
    ({"tool_choice": "required"}, "bad_input", "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "bad_input", "tool_choice"),
    ({"top_logprobs": 2}, "bad_input", "top_logprobs"),
    ({"stream": "yes"}, "bad_input", "stream"),
    ({"instructions": 3}, "bad_input", "instructions"),
    ({"user": "\ud83d"}, "bad_input", "user"),
    ({"user": {}}, "bad_input", "user"),
    ({"metadata": "x"}, "bad_input", "metadata"),
    ({"metadata": dict.fromkeys(map(str, range(17)), "x")}, "bad_input", "metadata"),
    ({"max_tool_calls": []}, "bad_input", "max_tool_calls"),
    ({"instructions": said("hi")}, "bad_input", "instructions"),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}, *said("hi")]}, "bad_input", "input[0]"),
    ({"input": [*said("hi"), {"type": 5, "role": "user", "content": "hi"}]}, "bad_input", "input[1]"),
    ({"seed": "x"}, "bad_params", "seed"),
    (formatted(name="two words"), "bad_params", "text.format"),
    (formatted(strict="no"), "bad_params", "text.format"),
    (formatted(json_schema={}), "bad_params", "text.format"),
    (formatted(name=None), "bad_params", "text.format.name"),
    (formatted(schema=3), "bad_params", "text.format.schema"),
    ({"max_output_tokens": 0}, "bad_params", "max_output_tokens"),
    ({"max_output_tokens": 10**4298}, "bad_params", "max_output_tokens"),
    ({"max_tool_calls": 2**63}, "bad_input", "max_tool_calls"),
    ({"messages": said("hi")}, "bad_input", "messages"),
    ({"response_format": {"type": "text"}}, "bad_input", "response_format"),
    ({"n": 2}, "bad_input", "n"),
    ({"input": [{"role": "system", "content": [IMAGE]}, *said("hi")]}, "bad_input", "input[0].content"),
    ({"model": "strict", "instructions": "Be a cat."}, "bad_params", "instructions"),
    (
        {"model": "strict", "input": [{"role": "system", "content": "Purr."}, *said("hi")]},
        "bad_params",
        "input[0].content",
    ),
]
NULLS = ["instructions", "metadata", "previous_response_id", "reasoning", "stream", "temperature", "text", "tools"]
TAKEN: list[dict[str, Any]] = [
    {**dict.fromkeys(NULLS), "input": ""},
    {"input": [{"type": None, "role": "user", "content": "hi"}], "seed": 1, "frequency_penalty": 0.5},
    {
        "background": False, "include": ["reasoning.encrypted_content"], "instructions": "", "metadata": {},
        "parallel_tool_calls": True, "reasoning": {"summary": "auto"}, "store": True, "tool_choice": "auto",
        "text": {"format": {"type": "text"}}, "tools": [], "top_logprobs": 0, "truncation": "auto",
    },
]  # fmt: skip


async def test_what_cannot_be_answered_is_refused_with_the_name_of_the_field(tmp_path: Path) -> None:
    async with talking(tmp_path) as (staged, _, client), httpx.AsyncClient(base_url=staged.served.base_url) as http:
        changes = [*(refused for refused, *_ in REFUSED), *TAKEN]
        bodies = [json.dumps({"model": "solo", "input": "hi", **change}) for change in changes]
        answers = [await http.post(URL, content=body, headers=AS_JSON) for body in bodies]
        assert len(staged.llm.requests) == len(TAKEN)
        with pytest.raises(openai.NotFoundError) as nobody:
            await client.responses.create(model="nobody", input="hi")
        with pytest.raises(openai.NotFoundError) as by_id:
            await client.responses.retrieve("resp_1")
        with pytest.raises(openai.NotFoundError) as deleted:
            await client.responses.delete("resp_1")
        by_get = await http.get(URL)
        below = [await http.post(f"{URL}/{path}") for path in ("input_tokens", "compact", "resp_1/cancel")]

    errors = [answer.json()["error"] for answer in answers[: len(REFUSED)]]
    assert [answer.status_code for answer in answers] == [400] * len(REFUSED) + [200] * len(TAKEN)
    assert [(one["code"], one["param"]) for one in errors] == [(code, param) for _, code, param in REFUSED]
    assert "store: false" in errors[4]["message"]
    assert "'messages' is not supported: in this API it is 'input'." in {one["message"] for one in errors}
    wrong = [one for one in errors if one["message"].startswith(f"{one['param']} must ")]
    assert {one["param"] for one in wrong} == {"seed", "text.format", "max_output_tokens"}
    assert all(one["message"].endswith(OFFERED) for one in wrong)
    assert errors_of(nobody.value) == (404, "invalid_request_error", "model_not_found", "model")
    assert errors_of(by_id.value) == errors_of(deleted.value) == (404, "invalid_request_error", "not_found", None)
    assert "keeps no responses" in by_id.value.message
    assert (by_get.status_code, by_get.headers["allow"]) == (405, "POST")
    assert {one.json()["error"]["message"][:20] for one in below} == {"This is not offered."}


async def test_half_of_a_surrogate_pair_of_the_model_is_an_answer_of_both_doors(tmp_path: Path) -> None:
    async with talking(tmp_path) as (staged, _, _client), httpx.AsyncClient(base_url=staged.served.base_url) as http:
        response = await http.post(URL, json={"model": "solo", "input": "half"})
        chat = await http.post("/v1/chat/completions", json={"model": "solo", "messages": said("half")})
    assert response.json()["output"][0]["content"][0]["text"].startswith("half ")
    assert chat.json()["choices"][0]["message"]["content"].startswith("half ")


async def test_an_error_after_the_first_event_ends_the_stream_as_failed(tmp_path: Path) -> None:
    async with talking(tmp_path) as (_, _, client):
        events = [event async for event in await client.responses.create(model="solo", input="cut", stream=True)]

    failed = last_of(events).model_dump()
    assert (texts_of(events), events[-1].type) == ("once upon", "response.failed")
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert "The model could not answer" in failed["error"]["message"]
    assert failed["pallas"] == {"reason": "llm_error"}


async def test_the_bytes_of_a_stream_that_began_with_a_heartbeat(tmp_path: Path) -> None:
    body = {"model": "solo", "input": "hang", "stream": True}
    async with (
        talking(tmp_path, heartbeat_seconds=0.2, drain_seconds=20) as (staged, plot, _),
        httpx.AsyncClient(base_url=staged.served.base_url, timeout=60) as http,
    ):
        call = asyncio.ensure_future(http.post(URL, json=body))
        await plot.gate.wait_for_entered(1)
        staged.served.stop.set()
        response = await hastened(call)

    lines = response.text.split("\n")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert lines[:2] == [": keep-alive", ""]
    told = [line for line in lines if line not in ("", ": keep-alive")]
    events = [json.loads(line.removeprefix("data: ")) for line in told[1:-1:2]]
    assert told[:-1:2] == [f"event: {event['type']}" for event in events]
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1]["response"]["pallas"] == {"reason": "stopped"}
    assert lines[-3:] == ["data: [DONE]", "", ""]


# Programs of others

CLIENTS = Path(__file__).parents[1] / "openai_clients"
IN_PYTHON, IN_NODE = (pytest.mark.needs(name) for name in ("openai-clients", "openai-clients-node"))


async def told_by(file: str, url: str, agent: str = "solo") -> Any:
    """What a program of `CLIENTS` says of its talk with an agent."""
    runner = program("openai-clients" if file.endswith(".py") else "openai-clients-node")
    client = await asyncio.create_subprocess_exec(runner, CLIENTS / file, url, agent, stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(client.communicate(), READY_SECONDS)
    return json.loads(said)


OF_FRAMEWORKS = ("openai_agents.py", "microsoft_agent_framework.py", "openai_agents.mjs", "ai_sdk.mjs", "langchain.mjs")


@pytest.mark.parametrize(
    "file", [pytest.param(file, marks=IN_PYTHON if file.endswith("py") else IN_NODE) for file in OF_FRAMEWORKS]
)
async def test_frameworks_hold_a_conversation_whole_and_streamed(file: str, tmp_path: Path) -> None:
    async with talking(tmp_path) as (staged, _, _):
        told = await told_by(file, staged.served.base_url)
        sent = staged.llm.requests[1].messages

    assert told.pop("id").startswith("resp_")
    assert told == {"whole": "heard 1: hello", "streamed": "Let me see.\n\nIt is 3.", "tokens": 27}
    assert [one["content"] for one in sent] == ["You are solo.\n\nBe a cat.", "hello", "heard 1: hello", "add"]


@pytest.mark.needs("openai-clients")
async def test_answers_have_the_types_of_the_open_specification(tmp_path: Path) -> None:
    async with talking(tmp_path) as (staged, _, _):
        told = await told_by("open_responses.py", staged.served.base_url, "eyes")

    assert told == {
        **dict.fromkeys(("basic", "system prompt", "image", "turns"), "completed"),
        "stream": "response.completed",
    }


@asynccontextmanager
async def litellm_proxy(path: Path, url: str) -> AsyncGenerator[str]:
    """The URL of a LiteLLM proxy whose model `concierge` is the agent `solo`."""
    params = {"model": "openai/solo", "api_base": f"{url}/v1", "api_key": "any"}
    config = path / "litellm.json"  # JSON is YAML
    models = [{"model_name": "concierge", "litellm_params": params}]
    config.write_text(json.dumps({"model_list": models, "router_settings": {"num_retries": 0}}))
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": PROXY_KEY, "HOME": str(path)}
    with reserved_port() as port:
        proxy = await asyncio.create_subprocess_exec(
            Path(program("openai-clients")).with_name("litellm"),
            *("--config", config, "--host", "127.0.0.1", "--port", str(port)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **settings},
            cwd=path,
        )
        assert proxy.stderr is not None
        try:
            async with asyncio.timeout(READY_SECONDS):
                while b"Uvicorn running" not in (line := await proxy.stderr.readline()):
                    assert line, "the proxy ended before it listened"
            yield f"http://127.0.0.1:{port}"
        finally:
            proxy.terminate()
            await asyncio.wait_for(proxy.communicate(), WAIT_SECONDS)


@pytest.mark.needs("openai-clients")
async def test_litellms_proxy_passes_responses_on_and_keeps_an_agent_that_failed(tmp_path: Path) -> None:
    async with (
        talking(tmp_path) as (staged, _, _),
        litellm_proxy(tmp_path, staged.served.base_url) as url,
        client_of(url, PROXY_KEY) as client,
    ):
        with pytest.raises(openai.InternalServerError):
            await client.responses.create(model="concierge", input="fail")
        whole = await client.responses.create(model="concierge", input="hello")
        events = [event async for event in await client.responses.create(model="concierge", input="add", stream=True)]

        asked = [request.last_user_text for request in staged.llm.requests]

    assert asked.count("fail") == 1  # three times without `num_retries: 0`
    assert (whole.output_text, whole.status) == ("heard 1: hello", "completed")
    assert texts_of(events) == last_of(events).output_text == "Let me see.\n\nIt is 3."
