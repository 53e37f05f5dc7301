"""Parts of the API for OpenAI's clients that no client brings about at will."""

import json
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.responses import JSONResponse

from pallas_gateway.calls.call import Call, Message, Reply, Usage
from pallas_gateway.calls.events.events import Emitter, EventSink, ToolCall, TurnEnded
from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.core.call_request import requested
from pallas_gateway.doors.openai import answers
from pallas_gateway.doors.openai.answering import CHAT_COMPLETION, Answering
from pallas_gateway.doors.openai.errors import BadRequestError, OpenAiError, in_openai_form
from pallas_gateway.doors.openai.requests import chat_request, wants_json
from pallas_gateway.identity.caller import ANONYMOUS
from pallas_gateway.long_responses import ServerSentEvents
from pallas_gateway.tasks import at_once
from pallas_gateway.telemetry import traces
from tests.support.asgi import Wire
from tests.support.hosted import ready
from tests.support.memory_runtime import MemoryAgent, say

SCOPE = {"type": "http", "headers": [], "method": "GET", "path": "/"}
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SETTINGS = AgentSettings(module="agents.echo")


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (503, {"error": "verification_unavailable", "error_description": "no keys"}, ("server_error", "no keys")),
        (401, {"error": "invalid_token", "error_description": "too old"}, ("authentication_error", "too old")),
        (421, {"error": "Host 'x' is not one"}, ("invalid_request_error", "Host 'x' is not one")),
    ],
)
def test_what_guards_refuse_is_told_in_the_form_of_the_api(
    status: int, body: dict[str, str], told: tuple[str, str]
) -> None:
    response = in_openai_form(JSONResponse(body, status_code=status, headers={"Retry-After": "5"}))
    error = json.loads(bytes(response.body))["error"]
    assert (error["type"], error["message"]) == told
    assert response.status_code == status
    assert response.headers["retry-after"] == "5"
    assert response.headers["content-length"] == str(len(response.body))


def test_what_has_the_form_already_and_what_is_no_error_pass_as_they_are() -> None:
    for response in (OpenAiError(HTTPStatus.CONFLICT, "no", "x", "y").response(), JSONResponse({"error": "none"})):
        assert in_openai_form(response) is response


@pytest.mark.parametrize(
    ("reply", "finish"),
    [
        (say("a"), "stop"),
        (say("a", stop_reason="stopSequence"), "stop"),
        (say("a", halted=["repeat"]), "stop"),
        (say("a", stop_reason="maxTokens"), "length"),
        (say("a", stop_reason="maxIterations"), "length"),
        (say("a", halted=["deadline"]), "length"),
        (say("a", stop_reason="safety"), "content_filter"),
    ],
)
def test_an_answer_ends_for_the_reason_clients_know(reply: Reply, finish: str) -> None:
    assert answers.finish_reason(reply) == finish


def test_what_came_from_the_cache_is_part_of_the_prompt() -> None:
    shown = answers.usage(Usage(input=1, output=8, cache_read=2, cache_write=4, reasoning=3))
    assert (shown["prompt_tokens"], shown["completion_tokens"], shown["total_tokens"]) == (7, 8, 15)
    assert shown["prompt_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 4}
    assert shown["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_parameters_without_effect_are_told_beside_the_answer() -> None:
    reply = replace(say("a"), ignored=("seed",), changed={"max_tokens": 10})
    notes = {"params": {"ignored": ["seed"], "changed": {"max_completion_tokens": 10}}}
    shown = answers.Completion("c", "echo", 0, understood())
    assert shown.whole("a", reply)["pallas"] == notes
    assert [chunk.get("pallas") for chunk in shown.last(reply)] == [notes]
    assert "pallas" not in shown.whole("a", say("a"))


HI = {"messages": [{"role": "user", "content": "hi"}]}


def understood(**changes: Any) -> Any:
    return at_once(chat_request({**HI, **changes}, SETTINGS, max_entries=10))


def test_fields_of_the_api_become_the_parameters_of_the_call() -> None:
    request = understood(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]},
            {"role": "assistant", "content": "hello"},
            {"role": "developer", "content": "Be kind."},
            {"role": "system", "content": ""},
            {"role": "user", "content": "bye"},
        ],
        temperature=0.5,
        max_tokens=100,
        max_completion_tokens=50,
        stop="END",
        seed=7,
        top_p=None,
        tool_choice="required",
        response_format={"type": "json_object"},
    )
    assert request.parameters.given() == {
        "temperature": 0.5,
        "max_tokens": 50,
        "stop": ("END",),
        "seed": 7,
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
        "system_append": "Be brief.\n\nBe kind.",
    }
    assert request.parameters.cleared == frozenset()
    assert request.history == (Message("user", "hi\nthere"), Message("assistant", "hello"))
    assert request.message == Message("user", "bye")
    assert wants_json(request.parameters, SETTINGS)


def test_nothing_asked_is_nothing_set() -> None:
    request = understood()
    assert request.parameters.given() == {}
    assert (request.include_usage, wants_json(request.parameters, SETTINGS)) == (False, False)


def test_an_agent_whose_answers_are_json_by_default_gives_its_final_answer_alone() -> None:
    settings = AgentSettings.model_validate(
        {"module": "agents.echo", "default_params": {"response_format": {"type": "json_object"}}}
    )
    request = at_once(chat_request({"messages": [{"role": "user", "content": "hi"}]}, settings, max_entries=10))
    assert wants_json(request.parameters, settings)
    assert request.parameters.given() == {}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "hi"}] * 11,
        [{"role": "user", "content": [{"type": "text", "text": "hi"}] * 11}],
        [{"role": "tool"}, None, {"role": "user", "content": [{}] * 9}],
    ],
)
def test_more_messages_or_parts_than_allowed_are_refused_whatever_they_are(messages: list[Any]) -> None:
    with pytest.raises(BadRequestError, match=r"11 messages .* at most 10 \(gateway.max_history_entries\)") as raised:
        understood(messages=messages)
    assert (raised.value.reason, raised.value.param) == ("bad_input", "messages")


async def chatted(memory: MemoryAgent, **changes: Any) -> Wire:
    """What the client of one request gets."""
    wire = Wire()
    async with ready(memory) as one:
        chat = Answering(
            CHAT_COMPLETION,
            {**HI, **changes},
            (dict(SCOPE), wire.receive, wire.send),
            ServerSentEvents(wire.receive, wire.send),
        )
        with requested(one.agent, ANONYMOUS, {}) as request:
            await chat.respond(request)
    return wire


@pytest.mark.parametrize("stream", [False, True])
async def test_a_mistake_of_the_gateways_is_a_sentence_and_its_traceback_stays_in_the_log(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(_: Call) -> Reply:
        raise ValueError("canary in a traceback")

    wire = await chatted(MemoryAgent(answer=explode), stream=stream)
    error = json.loads(wire.body)["error"]
    assert (wire.sent[0]["status"], error["code"]) == (500, "internal_error")
    assert "canary" not in str(wire.sent)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["call failed"]


async def test_an_answer_for_a_program_is_streamed_in_one_piece_without_what_was_said_on_the_way() -> None:
    def think(call: Call, sink: EventSink) -> None:
        emitter = Emitter(call.agent, None)
        search = ToolCall("c-1", "web", "search", {})
        sink.put(TurnEnded(emitter, 1, "Let me see.", [search], "toolUse"))

    memory = MemoryAgent(tells=think, answer=lambda _: say('{"a": 3}'))
    wire = await chatted(memory, stream=True, response_format={"type": "json_object"})
    lines = [line.removeprefix("data: ") for line in wire.body.decode().split("\n\n")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-2]]
    assert [delta.get("content") for delta in deltas] == ["", '{"a": 3}', None]
    assert lines[-2:] == ["[DONE]", ""]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user", "content": "hi"}], {"pallas.outcome": "ok", "pallas.stop_reason": "endTurn"}),
        ([], {"pallas.outcome": "error", "pallas.stop_reason": "bad_input", "error.type": "bad_input"}),
    ],
)
async def test_a_call_is_a_span_that_joins_the_clients_trace_and_is_none_of_mcps(
    messages: list[Any], expected: dict[str, str]
) -> None:
    wire, exporter = Wire(), InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    headers = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
    document = {"messages": messages, "metadata": {"conversation_id": "c-1"}}
    async with ready(MemoryAgent()) as one:
        chat = Answering(
            CHAT_COMPLETION, document, (dict(SCOPE), wire.receive, wire.send), ServerSentEvents(wire.receive, wire.send)
        )
        with (
            traces.using(provider.get_tracer("tests")),
            requested(one.agent, ANONYMOUS, headers, conversation_id="c-1", call_id="request-1") as request,
        ):
            await chat.respond(request)
    (span,) = exporter.get_finished_spans()
    assert span.context.trace_id == int(TRACE_ID, 16)
    told = dict(span.attributes or {})
    assert told.items() >= {"pallas.call_id": "request-1", "gen_ai.conversation.id": "c-1", **expected}.items()
    assert "mcp.method.name" not in told
