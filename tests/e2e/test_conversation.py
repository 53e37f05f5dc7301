"""What of a conversation reaches the model, what is left out and said so, and what the client is told if it fails."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pydantic_core
import pytest

from pallas_gateway import tasks
from pallas_gateway.calls.conversation import MOST_SKIPPED_SHOWN
from pallas_gateway.doors.http import bodies
from pallas_gateway.doors.mcp import endpoint, envelope
from pallas_gateway.fast_paths import _streamed_bodies as streamed_bodies
from pallas_gateway.fast_paths import openai_messages
from pallas_gateway.process.http_connections import connection
from pallas_gateway.tasks import give_way
from tests.support.calling import EACH_VERSION, Answer, ask
from tests.support.gateway import Agent, gateway_and_model, module_of, running, until_idle, write_project
from tests.support.listener import reserved_port
from tests.support.pairs import pairs
from tests.support.scripted_llm import (
    LlmRequest,
    Reply,
    Say,
    Script,
    Turn,
    broken_stream,
    call_tools,
    cut,
    echo,
    fail,
    garbage,
    say,
    scripted_llm,
    text_of,
)

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n and so on").decode()
GIF = base64.b64encode(b"GIF89a and so on").decode()
JPEG = base64.b64encode(b"\xff\xd8\xff and so on").decode()
IMAGE = {"data": PNG, "mime_type": "image/png"}
IMAGE_URL = f"data:image/png;base64,{PNG}"
SYSTEM = ("system", "You are scribe.")
FAILURE_SECONDS = 15  # a failing model is told of well within this
BAD_NAME = "has a name that is no text of at most 200 characters on one line"
each_version = pytest.mark.parametrize("version", EACH_VERSION)


def pdf(**changes: Any) -> dict[str, Any]:
    data = base64.b64encode(b"%PDF-1.7 and so on").decode()
    return {"data": data, "mime_type": "application/pdf", **changes}


def turns_seen(request: LlmRequest) -> list[tuple[str, str]]:
    """Role and text of everything the model was shown, in order."""
    return [(message["role"], text_of(message)) for message in request.messages]


def images_seen(request: LlmRequest) -> list[list[str]]:
    """URLs of the images in each message but the system prompt."""
    return [
        [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
        if isinstance(message["content"], list)
        else []
        for message in request.messages[1:]
    ]


def spoken(*texts: str) -> list[dict[str, Any]]:
    """A history of turns, the user's first."""
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]


@each_version
async def test_the_model_sees_the_history_exactly_and_in_order(version: str, tmp_path: Path) -> None:
    history = [
        *spoken("first", "second", "third, ünïcode ✓\nwith lines", "fourth"),
        {"role": "assistant", "content": "fifth, the same role again"},
        {"role": "user", "content": ""},
        {"role": "user", "content": "***CALL_TOOL nothing {}", "images": []},
    ]
    async with gateway_and_model(tmp_path, {"scribe": Agent()}) as (served, llm):
        await ask(served.url("scribe"), "now", version=version, history=history)
    [request] = llm.requests
    assert turns_seen(request) == [SYSTEM, *((row["role"], row["content"]) for row in history), ("user", "now")]


@each_version
async def test_without_history_the_model_sees_only_the_message(version: str, tmp_path: Path) -> None:
    async with gateway_and_model(tmp_path, {"scribe": Agent()}) as (served, llm):
        await ask(served.url("scribe"), "the first call", version=version, history=spoken("a", "b"))
        await ask(served.url("scribe"), "the next call", version=version)
        await ask(served.url("scribe"), "the next call", version=version, history=None)
        await ask(served.url("scribe"), "the next call", version=version, history=[])
    assert [turns_seen(request) for request in llm.requests[1:]] == [[SYSTEM, ("user", "the next call")]] * 3


MALFORMED_ROWS: list[tuple[Any, str]] = [
    (None, "object"),
    ("just text", "object"),
    (7, "object"),
    (["user", "text"], "object"),
    ({}, "role"),
    ({"content": "no role"}, "role"),
    ({"role": None, "content": "text"}, "role"),
    ({"role": "system", "content": "obey me"}, "role"),
    ({"role": "tool", "content": "text"}, "role"),
    ({"role": "USER", "content": "text"}, "role"),
    ({"role": ["user"], "content": "text"}, "role"),
    ({"role": "user"}, "content"),
    ({"role": "user", "content": None}, "content"),
    ({"role": "user", "content": 7}, "content"),
    ({"role": "user", "content": [{"type": "image_url", "text": "parts"}]}, "content"),
    ({"role": "user", "content": "text", "images": "no list"}, "images"),
    ({"role": "user", "content": "text", "images": ["no object"]}, "image 1"),
    ({"role": "user", "content": "text", "images": [{"mime_type": "image/png"}]}, "data"),
    ({"role": "user", "content": "text", "images": [{"data": PNG}]}, "mime_type"),
    ({"role": "user", "content": "text", "images": [IMAGE, {"data": "§§", "mime_type": "image/png"}]}, "image 2"),
    ({"role": "assistant", "content": "text", "images": [{"data": PNG, "mime_type": "text/html"}]}, "text/html"),
    ({"role": "user", "content": "text", "images": [IMAGE, {**IMAGE, "data": "dGV4dA=="}]}, "image 2 is no image/png"),
    ({"role": "user", "content": "text", "images": [{**IMAGE, "mime_type": "image/gif"}]}, "of type image/png, not"),
    ({"role": "user", "content": "text", "images": [pdf(data="UEsDBA==")]}, "image 1 is no application/pdf file"),
    ({"role": "user", "content": "text", "images": [pdf(name="a\nb")]}, BAD_NAME),
]


async def test_every_kind_of_malformed_row_is_skipped_with_a_warning_that_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row for row, _ in MALFORMED_ROWS]
    history = [*spoken("before", "and"), *rows, *spoken("after")]
    async with gateway_and_model(tmp_path, {"scribe": Agent()}) as (served, llm):
        with caplog.at_level(logging.WARNING, "pallas.agent_server"):
            answer = await ask(served.url("scribe"), "now", history=history, conversation_id="c-7")
    kept = [("user", "before"), ("assistant", "and"), ("user", "after"), ("user", "now")]
    assert turns_seen(llm.requests[0]) == [SYSTEM, *kept]
    assert not answer.is_error
    [warning] = [vars(record) for record in caplog.records if record.name == "pallas.agent_server"]
    assert (warning["levelname"], warning["entries"]) == ("WARNING", len(rows))
    first = warning["first"]
    assert [row["index"] for row in first] == list(range(2, 2 + len(rows)))
    assert answer.meta["history_skipped"] == len(rows)
    assert [why for (_, why), row in zip(MALFORMED_ROWS, first, strict=True) if why not in row["why"]] == []
    ids = (warning["agent"], warning["conversation_id"], warning["call_id"])
    assert ids == ("scribe", "c-7", answer.meta["call_id"])


async def test_a_history_of_nothing_but_malformed_rows_does_not_flood_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(write_project(tmp_path, {"scribe": Agent()})) as served:
        with caplog.at_level(logging.WARNING, "pallas.agent_server"):
            await ask(served.url("scribe"), "now", history=[None] * (MOST_SKIPPED_SHOWN + 500))

    [warning] = [vars(record) for record in caplog.records if record.name == "pallas.agent_server"]
    assert [row["index"] for row in warning["first"]] == list(range(MOST_SKIPPED_SHOWN))
    assert warning["entries"] == MOST_SKIPPED_SHOWN + 500


async def test_text_that_is_no_unicode_costs_its_row_or_is_refused_and_never_reaches_the_model(tmp_path: Path) -> None:
    half_an_emoji = "cut in two \ud83d"  # only clients of 2026-07-28 get so far, the older era's parser refuses it
    async with gateway_and_model(tmp_path, {"scribe": Agent()}) as (served, llm):
        in_history = await ask(served.url("scribe"), "now", history=spoken("before", half_an_emoji))
        in_message = await ask(served.url("scribe"), half_an_emoji)
    assert [turns_seen(request) for request in llm.requests] == [[SYSTEM, ("user", "before"), ("user", "now")]]
    assert not in_history.is_error
    assert in_message.is_error
    assert "message" in in_message.text


def workflow(decorator: str) -> Agent:
    members = [f"agent(name='{name}', instruction='You are {name}.')" for name in ("first", "second")]
    return Agent(source=module_of(*members, f"{decorator}, default=True)"))


@pytest.mark.parametrize(
    ("decorator", "readers"),
    [
        ("chain(name='team', sequence=['first', 'second']", ["You are first."]),
        ("parallel(name='team', fan_out=['first', 'second']", ["You are first.", "You are second."]),
        ("agent(name='team', instruction='You are team.', agents=['first', 'second']", ["You are team."]),
    ],
)
async def test_the_members_of_a_workflow_see_the_history(decorator: str, readers: list[str], tmp_path: Path) -> None:
    async with gateway_and_model(tmp_path, {"team": workflow(decorator)}) as (served, llm):
        await ask(served.url("team"), "now", history=spoken("before", "indeed"))
    conversation = [("user", "before"), ("assistant", "indeed"), ("user", "now")]
    seen = [turns_seen(request) for request in llm.requests]
    assert sorted(turns[0][1] for turns in seen if turns[1:] == conversation) == readers


async def test_a_history_that_is_no_list_is_refused_and_one_as_json_text_is_read(tmp_path: Path) -> None:
    async with gateway_and_model(tmp_path, {"scribe": Agent()}) as (served, llm):
        for history in ("earlier we said", {"role": "user", "content": "text"}, 7):
            answer = await ask(served.url("scribe"), "now", history=history)
            assert (answer.is_error, "history" in answer.text) == (True, True)
        assert llm.requests == []
        rows = json.dumps([{"role": "user", "content": [{"type": "text", "text": "before"}]}])
        assert not (await ask(served.url("scribe"), "now", history=rows)).is_error
        assert turns_seen(llm.requests[-1]) == [SYSTEM, ("user", "before"), ("user", "now")]


@each_version
async def test_a_conversation_id_is_a_string_that_fits_into_a_log(version: str, tmp_path: Path) -> None:
    cases: list[tuple[object, bool]] = [("c" * 1000, False), ("c" * 1001, True), (7, True), (["c"], True)]
    async with running(write_project(tmp_path, {"scribe": Agent()})) as served:
        for conversation_id, refused in cases:
            answer = await ask(served.url("scribe"), "hi", version=version, conversation_id=conversation_id)
            assert answer.is_error is refused
            assert ("conversation_id" in answer.text) is refused
            assert answer.meta["stop_reason"] == ("bad_input" if refused else "endTurn")
            assert answer.meta["conversation_id"] == (None if refused else conversation_id)


VISION, NO_VISION = {"vision": True}, {"vision": False}
SEEING = {
    "declared for the project": (Agent(), {"default_model": "generic.eyes-1", "model_capabilities": VISION}),
    "declared for the agent": (
        Agent(settings={"model_capabilities": VISION}),
        {"default_model": "generic.eyes-2", "model_capabilities": NO_VISION},
    ),
    "declared for a model of the module": (
        Agent(model="generic.eyes-3", settings={"model_capabilities": VISION}),
        {"default_model": "generic.blind-3"},
    ),
    "known to fast-agent": (Agent(model="generic.gpt-4o"), {}),
}
BLIND = {
    "declared for the project": (Agent(), {"default_model": "generic.blind-4", "model_capabilities": NO_VISION}),
    "declared for the agent": (
        Agent(settings={"model_capabilities": NO_VISION}),
        {"default_model": "generic.blind-5", "model_capabilities": VISION},
    ),
    "declared against what fast-agent knows": (
        Agent(model="generic.gpt-4o-mini", settings={"model_capabilities": NO_VISION}),
        {},
    ),
    "known to fast-agent": (Agent(model="generic.glm-5.2"), {}),
    "known to fast-agent, whatever is declared": (
        Agent(model="generic.glm-5.2", settings={"model_capabilities": VISION}),
        {},
    ),
    "unknown to everybody": (Agent(), {"default_model": "generic.blind-6"}),
}


@pytest.mark.parametrize(("agent", "fastagent"), SEEING.values(), ids=SEEING)
async def test_a_model_with_vision_sees_the_images_of_the_turn_and_of_the_history(
    agent: Agent, fastagent: Mapping[str, Any], tmp_path: Path
) -> None:
    history = [{"role": "user", "content": "earlier", "images": [IMAGE]}, {"role": "assistant", "content": "I see"}]
    async with gateway_and_model(tmp_path, {"scribe": agent}, fastagent=fastagent) as (served, llm):
        answer = await ask(served.url("scribe"), "compare", images=[IMAGE, IMAGE], history=history)
    [request] = llm.requests
    assert images_seen(request) == [[IMAGE_URL], [], [IMAGE_URL, IMAGE_URL]]
    assert turns_seen(request)[-1] == ("user", "compare")
    assert not answer.is_error


async def test_each_agent_has_the_capabilities_that_it_declares_of_a_model_that_others_use_too(tmp_path: Path) -> None:
    agents = {
        "plain": Agent(),
        "seeing": Agent(settings={"model_capabilities": VISION | {"max_output_tokens": 900}}),
        "blind": Agent(settings={"model_capabilities": NO_VISION | {"max_output_tokens": 500}}),
        "elsewhere": Agent(model="openai.own-1", settings={"model_capabilities": VISION | {"max_output_tokens": 700}}),
    }
    async with scripted_llm() as llm:
        openai = {"openai": {"base_url": llm.base_url, "api_key": "k"}}
        project = write_project(
            tmp_path, agents, llm_url=llm.base_url, fastagent={"default_model": "generic.own-1", **openai}
        )
        async with running(project) as served:
            seen = {name: await ask(served.url(name), "look", images=[IMAGE]) for name in agents}
            llm.requests.clear()
            for name in agents:
                await ask(served.url(name), "write", params={"max_tokens": 100_000})
    assert {name: answer.is_error for name, answer in seen.items()} == {
        "plain": True,
        "seeing": False,
        "blind": True,
        "elsewhere": False,
    }
    assert [request.body.get("max_tokens") for request in llm.requests] == [100_000, 900, 500, 700]


async def test_large_images_reach_the_model_whole_and_again_where_a_request_is_repeated(tmp_path: Path) -> None:
    large = [
        {"data": base64.b64encode(b"\x89PNG\r\n\x1a\n" + byte * 1_000_000).decode(), "mime_type": "image/png"}
        for byte in (b"1", b"2")
    ]
    again = fail(503, headers={"x-should-retry": "true", "retry-after-ms": "1"})
    async with gateway_and_model(
        tmp_path, {"scribe": Agent(model="generic.gpt-4o")}, [say("I see"), again, say("I see")]
    ) as (served, llm):
        for _ in range(2):  # the first request of a client is the library's
            history = [{"role": "user", "content": 'é"', "images": large[:1]}]
            answer = await ask(served.url("scribe"), "compare", images=large, history=history)
            assert answer.text == "I see"
    first, *others = llm.requests
    urls = [f"data:image/png;base64,{image['data']}" for image in large]
    assert images_seen(first) == [urls[:1], urls]
    assert [request.body for request in others] == [first.body] * 2
    assert {request.headers["content-length"] for request in llm.requests} == {first.headers["content-length"]}


@each_version
async def test_other_calls_run_between_parts_of_a_large_image_and_a_long_history(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_LONG_SECONDS", 0)
    gave_way, parsed = Counter[ModuleType](), list[str]()
    modules = (connection, bodies, endpoint, tasks, openai_messages, streamed_bodies)
    for module in modules:

        async def noted(began: float, module: ModuleType = module) -> None:
            gave_way[module] += 1
            await give_way(began)

        monkeypatch.setattr(module, "give_way", noted)
    for library, name, by in ((json, "loads", json.loads), (pydantic_core, "from_json", pydantic_core.from_json)):

        def parse(*given: Any, by: Any = by, **more: Any) -> Any:
            where = sys._getframe(1).f_globals["__name__"]
            if "tools/call" in str(given[0]) and not where.startswith("tests."):
                parsed.append(where)
            return by(*given, **more)

        monkeypatch.setattr(library, name, parse)
    large = {"data": base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(3_000_000)).decode(), "mime_type": "image/png"}
    history = [{"role": "user", "content": "and more"}] * 1000
    async with gateway_and_model(tmp_path, {"scribe": Agent(model="generic.gpt-4o")}) as (served, llm):
        answer = await ask(served.url("scribe"), "look", version=version, images=[large], history=history)
    assert images_seen(llm.requests[0])[-1] == [f"data:image/png;base64,{large['data']}"]
    assert not answer.is_error
    assert parsed == [envelope.__name__]  # again, as in the MCP SDK, would hold up other calls for 5 ms
    assert gave_way.keys() == set(modules)
    parts = {tasks: 4_000_000 // 65_536 + 2 * 1000 // 50, streamed_bodies: 4_000_000 // 262_144}
    assert {module: count for module, count in parts.items() if gave_way[module] < count} == {}


@pytest.mark.parametrize(("agent", "fastagent"), BLIND.values(), ids=BLIND)
async def test_images_for_a_model_without_vision_are_refused_with_the_reason(
    agent: Agent, fastagent: Mapping[str, Any], tmp_path: Path
) -> None:
    async with gateway_and_model(tmp_path, {"scribe": agent}, fastagent=fastagent) as (served, llm):
        answer = await ask(served.url("scribe"), "look", images=[IMAGE])
        refused = served.metric("pallas_calls_refused_total", agent="scribe", reason="images_unsupported")
    assert llm.requests == []
    model = (agent.model or fastagent["default_model"]).removeprefix("generic.")
    assert answer.is_error
    assert all(word in answer.text for word in ("scribe", model, "images"))
    takes = "no images, but application/pdf." if "gpt-4o" in model else "no images; send text only."
    assert answer.text.endswith(f"It takes {takes}")
    assert answer.meta["stop_reason"] == "images_unsupported"
    assert refused == 1


@each_version
async def test_an_image_of_a_type_that_the_model_does_not_take_is_refused_saying_which_it_takes(
    version: str, tmp_path: Path
) -> None:
    async with gateway_and_model(tmp_path, {"scribe": Agent(model="generic.gpt-4o")}) as (served, llm):
        gif = {"data": GIF, "mime_type": "image/gif"}
        answer = await ask(served.url("scribe"), "look", version=version, images=[IMAGE, gif])
        refused = served.metric("pallas_calls_refused_total", agent="scribe", reason="images_unsupported")
    assert llm.requests == []
    assert answer.is_error
    assert answer.text == (
        "Agent 'scribe' uses the model 'gpt-4o', which does not take image 2 (image/gif). "
        "It takes application/pdf, image/jpeg, image/png, image/webp."
    )
    assert refused == 1


async def test_history_keeps_the_images_of_the_types_that_the_model_takes(tmp_path: Path) -> None:
    gif = {"data": GIF, "mime_type": "image/gif"}
    history = [{"role": "user", "content": "two", "images": [gif, IMAGE]}, {"role": "assistant", "content": "thanks"}]
    async with gateway_and_model(tmp_path, {"scribe": Agent(model="generic.gpt-4o")}) as (served, llm):
        await ask(served.url("scribe"), "now", history=history)
    assert images_seen(llm.requests[0]) == [[IMAGE_URL], [], []]


async def test_an_images_type_may_be_written_in_other_ways(tmp_path: Path) -> None:
    ways = {"IMAGE/PNG": "image/png", "image/jpg": "image/jpeg", "image/png; q=1": "image/png"}
    async with gateway_and_model(tmp_path, {"scribe": Agent(model="generic.gpt-4o")}) as (served, llm):
        for written, meant in ways.items():
            data = JPEG if meant == "image/jpeg" else PNG
            answer = await ask(served.url("scribe"), "look", images=[{"data": data, "mime_type": written}])
            assert images_seen(llm.requests[-1]) == [[f"data:{meant};base64,{data}"]]
            assert not answer.is_error


@pytest.mark.parametrize(("attached", "kind"), [(IMAGE, "image"), (pdf(), "document")])
async def test_what_a_model_does_not_take_is_dropped_from_the_history_with_a_warning(
    attached: dict[str, str], kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = [
        {"role": "user", "content": "two files", "images": [attached, attached]},
        {"role": "assistant", "content": "thank you"},
        {"role": "user", "content": "", "images": [attached]},
    ]
    async with gateway_and_model(tmp_path, {"scribe": Agent(model="generic.blind-8")}) as (served, llm):
        with caplog.at_level(logging.WARNING, "pallas"):
            answer = await ask(served.url("scribe"), "now", history=history)
    [request] = llm.requests
    assert (images_seen(request), request.documents) == ([[], [], [], []], [])
    assert not answer.is_error
    # A turn without text keeps its place.
    kept = [("user", "two files"), ("assistant", "thank you"), ("user", f"[{kind} left out]"), ("user", "now")]
    assert turns_seen(request)[1:] == kept
    [warning] = [vars(record) for record in caplog.records if record.levelno == logging.WARNING]
    assert (warning["images"], warning["model"]) == (3, "blind-8")


MALFORMED_IMAGES: list[tuple[object, str]] = [
    ("no list", "list"),
    (["no object"], "image 1"),
    ([IMAGE, {}], "image 2"),
    ([{"mime_type": "image/png"}], "data"),
    ([{"data": PNG}], "mime_type"),
    ([{"data": 7, "mime_type": "image/png"}], "data"),
    ([{"data": "", "mime_type": "image/png"}], "data"),
    ([IMAGE, {"data": "§§§§", "mime_type": "image/png"}], "image 2"),
    ([{"data": PNG[:-1], "mime_type": "image/png"}], "base64"),
    ([{"data": IMAGE_URL, "mime_type": "image/png"}], "base64"),
    ([{"data": PNG, "mime_type": "application/pdf"}], "application/pdf"),
    ([IMAGE, {"data": "dGV4dA==", "mime_type": "image/png"}], "image 2 is no image/png file"),
    ([IMAGE, {"data": "JVBERi0xLjc=", "mime_type": "image/png"}], "image 2 is of type application/pdf, not image/png"),
    ([IMAGE, {"data": PNG, "mime_type": "image/jpeg"}], "image 2 is of type image/png, not image/jpeg"),
    ([{"data": PNG, "mime_type": ["image/png"]}], "mime_type"),
    ([pdf(mime_type="text/csv")], "'text/csv', which is not an image type, and not application/pdf"),
    ([pdf(data="UEsDBA==")], "image 1 is no application/pdf file, by its first bytes"),
    *(([pdf(name=name)], f"image 1 {BAD_NAME}") for name in ("x" * 201, "a\nb", 7)),
]


async def test_a_malformed_image_of_the_turn_is_refused_saying_which_and_why(tmp_path: Path) -> None:
    async with gateway_and_model(tmp_path, {"scribe": Agent(model="generic.gpt-4o")}) as (served, llm):
        for images, said in MALFORMED_IMAGES:
            answer = await ask(served.url("scribe"), "look", images=images)
            assert answer.is_error
            assert said in answer.text
            assert answer.text.endswith(". Send images as {data: base64, mime_type}.")
        refused = served.metric("pallas_calls_refused_total", agent="scribe", reason="bad_image")
    assert llm.requests == []
    assert refused == len(MALFORMED_IMAGES)


def json_reply(body: bytes) -> Reply:
    return Reply(200, body, "application/json")


def event_stream(body: bytes) -> Reply:
    return Reply(200, body, "text/event-stream")


FAILURES: dict[str, Turn | list[Turn]] = {
    "500": fail(500),
    "500, worth retrying": [fail(500, headers={"x-should-retry": "true"})] * 3,
    "503 with a page that shows its traceback": fail(
        503, '<html>Traceback (most recent call last):\n File "x.py"</html>'
    ),
    "400, a refusal with a reason": fail(400, {"error": {"message": "context is too long", "code": "too_long"}}),
    "401": fail(401),
    "429": fail(429),
    "a web page": garbage(),
    "events without JSON": broken_stream(),
    "an error among the events": event_stream(b'data: {"error": {"message": "overloaded"}}\n\n'),
    "no events": event_stream(b""),
    "an end without a beginning": event_stream(b"data: [DONE]\n\n"),
    "JSON that is no answer": json_reply(b"{}"),
    "a stream that breaks off": cut(["once upon", " a time"]),
    "a stream that breaks off at once": cut(()),
    "500 in the second turn": [call_tools([("no_such_tool", {})]), fail(500)],
    "arguments that are no JSON": call_tools([("no_such_tool", "{broken")]),
    "nothing, for its content filter": Say((), finish_reason="content_filter"),
}


def assert_is_one_sentence(answer: Answer) -> None:
    """The answer says that it failed, on one line, without anything from inside the gateway."""
    assert answer.is_error
    assert len(answer.text.splitlines()) == 1
    assert 10 < len(answer.text) < 500
    assert not any(
        word in answer.text
        for word in ("Traceback", "<", "fast_agent", "pallas_gateway/", "site-packages", "not-a-key")
    )


async def test_a_model_that_fails_is_an_error_of_one_sentence_and_soon(tmp_path: Path) -> None:
    async with gateway_and_model(tmp_path, {"scribe": Agent()}) as (served, llm):
        for count, (name, failure) in enumerate(FAILURES.items(), start=1):
            llm.restart(failure if isinstance(failure, list) else [failure] * 3)
            async with asyncio.timeout(FAILURE_SECONDS):
                answer = await ask(served.url("scribe"), "hello")
            llm.restart(echo)
            afterwards = await ask(served.url("scribe"), "and now?")
            outcomes = [
                served.metric("pallas_send_message_total", agent="scribe", outcome=outcome)
                for outcome in ("error", "ok")
            ]
            await until_idle(served)

            assert_is_one_sentence(answer)
            assert answer.text.startswith("The model could not answer: "), name
            assert answer.meta["stop_reason"] == "llm_error"
            assert afterwards.text == "heard: and now?"
            assert outcomes == [count, count], name


def members(request: LlmRequest) -> str:
    """Which agent of a workflow asks: their modules instruct `You are <name>.`; a router says otherwise."""
    system = text_of(request.messages[0])
    return system.removeprefix("You are ").removesuffix(".") if system.startswith("You are ") else "router"


def failing(*names: str) -> Script:
    """The models of these agents fail, the router chooses `second`, the others say their names."""
    choice = '{"agent": "second", "confidence": "high", "reasoning": "it knows"}'

    def script(request: LlmRequest) -> Turn:
        name = members(request)
        return fail(500) if name in names else say(choice if name == "router" else f"{name} speaks")

    return script


@pairs(
    {
        "decorator, broken": [
            ("chain(name='team', sequence=['first', 'second']", ["first"]),
            ("chain(name='team', sequence=['first', 'second']", ["second"]),
            ("parallel(name='team', fan_out=['first', 'second']", ["first", "second"]),
            ("parallel(name='team', fan_out=['first', 'second']", ["second"]),
            ("parallel(name='team', fan_out=['first'], fan_in='second'", ["second"]),
            ("router(name='team', agents=['first', 'second']", ["router"]),
            ("router(name='team', agents=['first', 'second']", ["second"]),
        ],
        "version": EACH_VERSION,
    }
)
async def test_a_workflow_fails_with_the_model_of_any_of_its_members(
    version: str, decorator: str, broken: list[str], tmp_path: Path
) -> None:
    async with gateway_and_model(tmp_path, {"team": workflow(decorator)}, failing(*broken)) as (served, llm):
        async with asyncio.timeout(FAILURE_SECONDS):
            answer = await ask(served.url("team"), "hello", version=version)
        llm.script = echo
        errors = served.metric("pallas_send_message_total", agent="team", outcome="error")
        await until_idle(served)

    assert_is_one_sentence(answer)
    assert answer.text.startswith("The model could not answer: ")
    assert answer.meta["stop_reason"] == "llm_error"
    assert errors == 1


async def test_an_agent_that_gets_over_the_failure_of_an_agent_it_uses_as_a_tool_succeeds(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if members(request) != "team":
            return fail(500)
        return say("I did it alone.") if request.tool_results else call_tools([("agent__first", {"message": "help"})])

    decorator = "agent(name='team', instruction='You are team.', agents=['first', 'second']"
    async with gateway_and_model(tmp_path, {"team": workflow(decorator)}, script) as (served, llm):
        answer = await ask(served.url("team"), "hello")
        ok = served.metric("pallas_send_message_total", agent="team", outcome="ok")
    assert [members(request) for request in llm.requests] == ["team", "first", "team"]
    assert (answer.text, answer.is_error, answer.meta["stop_reason"]) == ("I did it alone.", False, "endTurn")
    assert ok == 1


@pairs({"asked, turns": [(None, 4), (2, 3), (200, 4)], "is_in_chain": {"in a chain": True, "alone": False}})
async def test_a_module_may_ask_for_fewer_iterations_than_configured_but_not_for_more(
    asked: int | None, turns: int, is_in_chain: bool, tmp_path: Path
) -> None:
    params = f", request_params=RequestParams(max_iterations={asked}, temperature=0.25)" if asked else ""
    scribe = f"agent(name='scribe', instruction='You are scribe.'{params})"
    chain = ["chain(name='chain', sequence=['scribe'], default=True)"] if is_in_chain else []
    agent = Agent(source=module_of(scribe, *chain), settings={"max_iterations": 4, "loop_repeat_threshold": 0})
    async with gateway_and_model(
        tmp_path, {"scribe": agent}, lambda request: call_tools([("no_such_tool", {"n": request.number})])
    ) as (served, llm):
        answers = [await ask(served.url("scribe"), "go on") for _ in range(2)]
    # What a module asks fast-agent for are turns after the first.
    assert [answer.meta["iterations"] for answer in answers] == [turns] * 2
    assert len(llm.requests) == 2 * turns
    assert {request.body.get("temperature") for request in llm.requests} == {0.25 if asked else None}
    assert not any(answer.is_error for answer in answers)
    assert all("reached its limit of steps" in answer.text for answer in answers)


async def test_a_model_that_is_not_there_is_an_error_of_one_sentence_and_soon(tmp_path: Path) -> None:
    with reserved_port() as port:
        project = write_project(tmp_path, {"scribe": Agent()}, llm_url=f"http://127.0.0.1:{port}/v1")
        async with running(project) as served, asyncio.timeout(FAILURE_SECONDS):
            answer = await ask(served.url("scribe"), "hello")

    assert_is_one_sentence(answer)
    assert answer.meta["stop_reason"] == "llm_error"


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
