"""What is stored of a round of tools, and what a model reads of it later."""

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from fast_agent.constants import (
    ANTHROPIC_ASSISTANT_RAW_CONTENT,
    FAST_AGENT_TIMING,
    OPENAI_REASONING_ENCRYPTED,
    REASONING,
)
from fast_agent.types import PromptMessageExtended
from fast_agent.types.llm_stop_reason import LlmStopReason
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from pallas_gateway.calls.call import Message, Step, StepLog
from pallas_gateway.runtime.call.steps import StepRecorder, replayed
from pallas_gateway.tasks import at_once
from pallas_gateway.telemetry.redaction import hiding

MOST = 1_000
TOKEN = "token-of-the-caller-0815"


def llm(provider: str = "generic", model: str = "m") -> Any:
    return SimpleNamespace(
        provider=SimpleNamespace(config_name=provider), model_name=model, history=SimpleNamespace(get=list)
    )


def text(value: str) -> TextContent:
    return TextContent(type="text", text=value)


def asking(
    calls: Mapping[str, dict[str, Any]], channels: Mapping[str, list[Any]] | None = None, said: str = ""
) -> PromptMessageExtended:
    requests = {
        id_: CallToolRequest(method="tools/call", params=CallToolRequestParams(name="tools__look", arguments=arguments))
        for id_, arguments in calls.items()
    }
    content: list[Any] = [text(said)] if said else []
    return PromptMessageExtended(
        role="assistant", content=content, tool_calls=requests, channels=channels, stop_reason=LlmStopReason.TOOL_USE
    )


def recorded(
    message: PromptMessageExtended, results: Mapping[str, CallToolResult] | None = None, *, by: Any = None
) -> Step:
    log = StepLog(MOST)
    recorder = StepRecorder(log)
    names = dict.fromkeys(message.tool_calls or {}, "tools/look")
    recorder.begin("loop", by or llm(), message, names)
    if results is None:
        recorder.close()
    else:
        recorder.end("loop", results)
    recorder.close()
    [step] = log.steps
    return step


def test_arguments_that_are_nested_too_deeply_are_not_kept_and_end_no_call() -> None:
    arguments: dict[str, Any] = {}
    for _ in range(500):
        arguments = {"a": arguments}
    log = StepLog(MOST)
    recorder = StepRecorder(log)
    recorder.begin("loop", llm(), asking({"call_1": arguments}), {"call_1": "tools/look"})
    recorder.end("loop", {})
    assert log.steps == []


def result_of(step: Step, id_: str = "a") -> Any:
    return json.loads(step.data)["results"]["tool_results"][id_]


def said(*content: Any, is_error: bool = False) -> dict[str, CallToolResult]:
    return {"a": CallToolResult(content=list(content), is_error=is_error)}


def history(*steps: Step, by: Any = None, offers_tools: bool = True) -> list[PromptMessageExtended]:
    messages = [Message("user", "look"), Message("assistant", "found", steps=steps), Message("user", "more")]
    return at_once(replayed(messages, by or llm(), offers_tools=offers_tools))


def shape(messages: list[PromptMessageExtended]) -> list[str]:
    return [
        "calls" if one.tool_calls else "results" if one.tool_results else f"{one.role}: {one.all_text()}"
        for one in messages
    ]


def test_a_round_comes_back_as_it_was_to_the_model_that_made_it() -> None:
    step = recorded(
        asking({"a": {"x": 1}}, {REASONING: [text("hm")], FAST_AGENT_TIMING: [text("{}")]}), said(text("yes"))
    )
    _, calls, results, answer, _ = replay = history(step)
    assert shape(replay) == ["user: look", "calls", "results", "assistant: found", "user: more"]
    assert calls.tool_calls is not None
    assert calls.tool_calls["a"].params.arguments == {"x": 1}
    assert (calls.stop_reason, {*(calls.channels or {})}) == (LlmStopReason.TOOL_USE, {REASONING})
    assert results.tool_results == said(text("yes"))
    assert answer.role == "assistant"


def test_arguments_that_a_tool_changes_afterwards_are_stored_as_the_model_wrote_them() -> None:
    log = StepLog(MOST)
    recorder, message = StepRecorder(log), asking({"a": {"x": 1}})
    recorder.begin("loop", llm(), message, {"a": "tools/look"})
    assert message.tool_calls is not None
    message.tool_calls["a"].params.arguments = {"x": 2}
    recorder.end("loop", said(text("yes")))
    assert '"arguments":{"x":1}' in log.steps[0].data


def test_a_call_whose_result_did_not_come_gets_an_error_as_its_result() -> None:
    step = recorded(asking({"a": {}, "b": {}}))
    assert [result_of(step, id_)["isError"] for id_ in ("a", "b")] == [True, True]
    partly = recorded(asking({"a": {}, "b": {}}), said(text("yes")))
    assert [result_of(partly, id_).get("isError", False) for id_ in ("a", "b")] == [False, True]
    assert shape(history(partly))[1:3] == ["calls", "results"]


@pytest.mark.parametrize(
    ("block", "kept"),
    [
        (text("short"), "short"),
        (ImageContent(type="image", data="A" * 2_000, mime_type="image/png"), "[image/png: not kept, 2000 bytes]"),
        (AudioContent(type="audio", data="AAAA", mime_type="audio/wav"), "[audio/wav: not kept]"),
        (
            EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///a", text="in a file")),
            "in a file",
        ),
        (
            EmbeddedResource(
                type="resource",
                resource=BlobResourceContents(uri="file:///a", blob="AAAA", mime_type="application/zip"),
            ),
            "[application/zip: not kept, 4 bytes]",
        ),
        (ResourceLink(type="resource_link", name="page", uri="https://example.com/"), "[page](https://example.com/)"),
    ],
    ids=lambda one: one if isinstance(one, str) else one.type,
)
def test_of_a_result_texts_are_kept_and_others_named(block: Any, kept: str) -> None:
    step = recorded(asking({"a": {}}), said(block))
    assert result_of(step)["content"] == [{"type": "text", "text": kept}]


def test_a_small_image_is_kept_and_read_as_an_image_again() -> None:
    picture = ImageContent(type="image", data="AAAA", mime_type="image/png")
    step = recorded(asking({"a": {}}), said(text("look"), picture))
    assert history(step)[2].tool_results == said(text("look"), picture)
    assert "[image/png]" in history(step, by=llm("other"))[1].all_text()


@pytest.mark.parametrize("letter", ["x", "é", "\N{GRINNING FACE}"])
def test_a_long_result_is_cut_to_its_bytes_in_whole_letters(letter: str) -> None:
    step = recorded(asking({"a": {}}), said(text(letter * MOST * 2), text("never read")))
    [block] = result_of(step)["content"]
    assert len(block["text"].encode()) <= MOST
    assert block["text"].endswith(f"… [cut: {len(letter.encode()) * MOST * 2} bytes]")
    assert block["text"].startswith(letter * 100)


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "x" * 5_000},
        {"many": ["x" * 900] * 9},
        {"deep": {"a": ["é" * 5_000]}},
        {f"k{i}": i for i in range(999)},
    ],
    ids=lambda one: next(iter(one)),
)
def test_long_arguments_are_cut_and_stay_an_object(arguments: dict[str, Any]) -> None:
    step = recorded(asking({"a": arguments}), said(text("yes")))
    stored = json.loads(step.data)["assistant"]["tool_calls"]["a"]["params"]["arguments"]
    assert isinstance(stored, dict)
    assert len(json.dumps(stored, ensure_ascii=False).encode()) <= MOST
    assert "cut" in json.dumps(stored)
    assert shape(history(step))[1] == "calls"


def test_tokens_of_the_caller_are_nowhere_in_what_is_stored() -> None:
    raw = [
        {"type": "text", "text": TOKEN},
        {"type": "tool_use", "id": "a", "name": "tools__look", "input": {"x": TOKEN}},
    ]
    channels = {ANTHROPIC_ASSISTANT_RAW_CONTENT: [text(json.dumps(one)) for one in raw], REASONING: [text(TOKEN)]}
    with hiding(TOKEN):
        step = recorded(asking({"a": {"x": TOKEN}}, channels, said=TOKEN), said(text(f"it is {TOKEN}")))
        plain = recorded(asking({"a": {}}, {REASONING: [text(TOKEN)]}), said(text("yes")))
    assert TOKEN not in step.data + plain.data
    assert result_of(step)["content"] == [{"type": "text", "text": "it is ****"}]
    assert shape(history(step))[1:3] == ["calls", "results"]


@pytest.mark.parametrize(
    ("channel", "block"),
    [
        (ANTHROPIC_ASSISTANT_RAW_CONTENT, {"type": "thinking", "thinking": f"with {TOKEN}", "signature": "s"}),
        (OPENAI_REASONING_ENCRYPTED, {"schema": "s", "version": 1, "item": {"summary": [{"text": TOKEN}]}}),
        (ANTHROPIC_ASSISTANT_RAW_CONTENT, {"type": "thinking", "thinking": "x" * 300_000, "signature": "s"}),
    ],
    ids=["thinking", "reasoning", "too long"],
)
def test_a_signed_part_that_cannot_be_kept_as_it_is_makes_the_round_one_for_reading_as_text(
    channel: str, block: dict[str, Any]
) -> None:
    with hiding(TOKEN):
        step = recorded(asking({"a": {}}, {channel: [text(json.dumps(block))]}), said(text("yes")))
    assert TOKEN not in step.data
    replay = history(step)
    assert [one.role for one in replay] == ["user", "assistant", "user"]
    assert "tools/look {} returned:\nyes" in replay[1].all_text()
    assert replay[1].all_text().endswith("found")


SIGNED = {ANTHROPIC_ASSISTANT_RAW_CONTENT: [text('{"type":"thinking","thinking":"t","signature":"s"}')]}


@pytest.mark.parametrize(
    ("channels", "by", "offers_tools", "is_own"),
    [
        (None, llm(), True, True),
        (None, llm(model="other"), True, True),
        (None, llm("other"), True, False),
        (None, llm(), False, False),
        ({REASONING: [text("hm")]}, llm(model="other"), True, True),
        (SIGNED, llm(), True, True),
        (SIGNED, llm(model="other"), True, False),
    ],
    ids=["same", "other model", "other provider", "no tools", "thought, other model", "signed", "signed, other model"],
)
def test_a_model_reads_its_own_messages_and_others_as_text(
    channels: dict[str, list[Any]] | None, by: Any, *, offers_tools: bool, is_own: bool
) -> None:
    step = recorded(asking({"a": {"x": 1}}, channels, said="let me look"), said(text("no"), is_error=True))
    replay = history(step, by=by, offers_tools=offers_tools)
    if is_own:
        assert shape(replay)[1:4] == ["calls", "results", "assistant: found"]
        assert bool(replay[1].channels) == (by.model_name == "m" and channels is not None)
    else:
        assert [one.role for one in replay] == ["user", "assistant", "user"]
        assert replay[1].all_text().split("\n\n")[1:] == ["let me look", 'tools/look {"x": 1} failed:\nno', "found"]


def test_a_turn_is_text_as_a_whole_if_the_model_cannot_read_one_of_its_rounds() -> None:
    own = recorded(asking({"a": {}}), said(text("one")))
    foreign = recorded(asking({"a": {}}), said(text("two")), by=llm("other"))
    assert shape(history(own, foreign))[1].count("returned") == 2


def test_ids_of_calls_that_come_again_are_not_sent_twice() -> None:
    step = recorded(asking({"a": {}}), said(text("one")))
    messages = [Message("user", "look"), Message("assistant", "found", steps=(step,))] * 2
    replay = at_once(replayed(messages, llm(), offers_tools=True))
    assert shape(replay)[:4] == ["user: look", "calls", "results", "assistant: found"]
    assert [one.role for one in replay[4:]] == ["user", "assistant"]


@pytest.mark.parametrize("data", ["{", "{}", '{"assistant": {"role": "judge"}, "results": {}}', '{"assistant": []}'])
def test_what_another_version_has_stored_is_left_out_with_a_warning(
    data: str, caplog: pytest.LogCaptureFixture
) -> None:
    replay = history(Step("generic", "m", data))
    assert [one.role for one in replay] == ["user", "assistant", "user"]
    assert replay[1].all_text().endswith("found")
    assert "stored step not readable" in caplog.messages


def test_a_thread_of_an_earlier_version_has_no_steps_and_is_read_as_before() -> None:
    replay = history()
    assert shape(replay) == ["user: look", "assistant: found", "user: more"]
