"""Messages copied in short are those that `copy.deepcopy` makes."""

import inspect
from copy import deepcopy
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, override

import pytest
from fast_agent.agents.agent_types import AgentConfig
from fast_agent.agents.llm_decorator import LlmDecorator
from fast_agent.types import LlmStopReason, PromptMessageExtended, RequestParams
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Icon,
    ImageContent,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import BaseModel, ConfigDict, PrivateAttr

from pallas_gateway.calls.current import Unshared
from pallas_gateway.fast_paths._deep_copying import copying_tools, fast_deepcopy
from pallas_gateway.runtime import preparation


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")

    inner: Any = None


class Private(BaseModel):
    inner: Any = None
    _hidden: list[int] = PrivateAttr(default_factory=lambda: [1])


class Counted(BaseModel):
    copies: int = 0

    @override
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> "Counted":
        return Counted(copies=self.copies + 1)


def text(words: str) -> TextContent:
    return TextContent.model_validate({"type": "text", "text": words, "_meta": {"from": ["me"]}})


def a_call() -> CallToolRequest:
    return CallToolRequest(
        method="tools/call", params=CallToolRequestParams(name="t", arguments={"a": [1, {"b": None}], "c": (1, 2)})
    )


MODELS = [
    PromptMessageExtended(role="user", content=[text("one"), ImageContent(type="image", data="eA==", mime_type="x/y")]),
    PromptMessageExtended(
        role="assistant",
        content=[],
        tool_calls={"1": a_call()},
        channels={"reasoning": (text("thinks"),)},
        stop_reason=LlmStopReason.TOOL_USE,
        timestamp=datetime.now(UTC),
    ),
    PromptMessageExtended(
        role="user", tool_results={"1": CallToolResult(content=[text("r")], structured_content={"deep": [{"er": {1}}]})}
    ),
    RequestParams.model_validate({"model": "one", "metadata": {"a": {"b": [1]}}, "made_up": {"x": [1]}}),
    Loose.model_validate({"inner": Private(inner=[1]), "more": {"x": bytearray(b"y")}}),
    Loose(inner=Counted()),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_a_copy_is_equal_and_shares_nothing_that_can_change(model: BaseModel) -> None:
    theirs, ours = BaseModel.__deepcopy__(model), fast_deepcopy(model)

    assert ours == theirs
    assert type(ours) is type(model)
    assert (ours.__dict__, ours.model_extra) == (theirs.__dict__, theirs.model_extra)
    assert ours.model_fields_set == model.model_fields_set
    assert ours.model_fields_set is not model.model_fields_set
    shared = changeable(ours) & changeable(model)
    assert shared == set()


def changeable(value: Any) -> set[int]:
    """The ids of all that can change in it."""
    if isinstance(value, BaseModel):
        parts = [value.__dict__, value.model_extra, value.__pydantic_private__]
        return {id(value)}.union(*map(changeable, parts))
    if isinstance(value, dict):
        return {id(value)}.union(*map(changeable, value.values()))
    if isinstance(value, (list, set, tuple)):
        return ({id(value)} if not isinstance(value, tuple) else set()).union(*map(changeable, value))
    return {id(value)} if isinstance(value, bytearray) else set()


def test_what_occurs_twice_occurs_twice_in_the_copy() -> None:
    block, items = text("one"), [1]
    message = PromptMessageExtended(role="user", content=[block])
    message.content.append(block)
    whole = [Loose(inner=[items, {"items": items}, message, message])]

    copy = deepcopy(whole)[0]
    model = fast_deepcopy(whole[0])

    for made in (copy, model):
        assert made.inner[0] is made.inner[1]["items"]
        assert made.inner[2] is made.inner[3]
        assert made.inner[2].content[0] is made.inner[2].content[1]
    assert model == copy


def test_what_contains_itself_does_so_in_the_copy() -> None:
    endless: dict[str, Any] = {"list": []}
    endless["list"].append(endless)

    copy = fast_deepcopy(Loose(inner=endless))

    assert copy.inner["list"][0] is copy.inner
    assert copy.inner is not endless


def said(role: Any, words: str) -> PromptMessageExtended:
    return PromptMessageExtended(role=role, content=[text(words)])


RESULTS = PromptMessageExtended(role="user", tool_results={"1": CallToolResult(content=[text("r")])})


class Silent(LlmDecorator):
    """An agent whose model is never asked."""

    @override
    def _require_llm(self) -> Any:
        return SimpleNamespace(get_request_params=lambda given: given)


def prepared(agent: LlmDecorator, messages: list[PromptMessageExtended]) -> list[PromptMessageExtended]:
    return agent._prepare_llm_call(messages).full_history


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([], id="no history"),
        pytest.param([said("user", "one"), said("assistant", "two")], id="turns"),
        pytest.param([said("user", "one"), RESULTS], id="results of tools before"),
    ],
)
@pytest.mark.parametrize("new", [[said("user", "new")], [said("user", "a"), said("user", "b")], [RESULTS], []])
def test_a_turn_gets_the_messages_that_fast_agent_would_give_it(
    history: list[PromptMessageExtended], new: list[PromptMessageExtended], monkeypatch: pytest.MonkeyPatch
) -> None:
    preparation.prepare()
    agent = Silent(AgentConfig("agent"))
    agent.load_message_history(history)
    for message in new:
        message.timestamp = datetime(2026, 1, 1, tzinfo=UTC)

    ours = prepared(agent, new)

    kept = changeable([*agent.message_history, *history])
    assert changeable(ours) & kept == set()
    assert len(history) + len(new) < 2 or changeable(ours) & changeable(new) == set()
    merge = staticmethod(inspect.unwrap(LlmDecorator._merge_trailing_tool_result_turn))
    monkeypatch.setattr(LlmDecorator, "_merge_trailing_tool_result_turn", merge)
    monkeypatch.setattr(LlmDecorator, "_prepare_llm_call", inspect.unwrap(LlmDecorator._prepare_llm_call))
    assert ours == prepared(agent, new)


def test_a_turn_copies_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    agent = Silent(AgentConfig("agent"))
    agent.load_message_history([said("user", "one"), said("assistant", "two")])
    copied = []
    copy = PromptMessageExtended.model_copy

    def noted(self: PromptMessageExtended, **options: Any) -> PromptMessageExtended:
        copied.append(self.first_text())
        return copy(self, **options)

    monkeypatch.setattr(PromptMessageExtended, "model_copy", noted)
    prepared(agent, [said("user", "new")])

    assert [one for one in copied if one != "new"] == ["one", "two"]


def test_messages_are_loaded_uncopied_if_they_are_the_agents_own() -> None:
    preparation.prepare()
    agent, messages = Silent(AgentConfig("agent")), [said("user", "one")]

    agent.load_message_history(messages)
    assert agent.message_history == messages
    assert agent.message_history[0] is not messages[0]

    agent.load_message_history(Unshared(messages))
    assert agent.message_history[0] is messages[0]

    agent.load_message_history(None)
    assert agent.message_history == []


def a_tool() -> Tool:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": ["x", 1, None]}}, "required": ["a"]}
    return Tool.model_validate(
        {
            "name": "look",
            "inputSchema": schema,
            "outputSchema": {**schema, "examples": [bytearray(b"odd"), ({"in": ["a tuple"]},)]},
            "annotations": ToolAnnotations(read_only_hint=True),
            "icons": [Icon(src="https://example.com/icon.png")],
            "_meta": {"from": ["me"]},
        }
    )


@pytest.mark.parametrize("update", [None, {"name": "server__look"}, {"input_schema": {"type": "object"}}])
def test_a_copied_tool_is_equal_and_shares_nothing_that_can_change(update: dict[str, Any] | None) -> None:
    theirs = inspect.unwrap(Tool.model_copy)
    tool, ours = a_tool(), copying_tools(theirs, None)

    made = ours(tool, deep=True, update=update)

    assert made == theirs(tool, deep=True, update=update)
    assert made.model_fields_set == theirs(tool, deep=True, update=update).model_fields_set
    assert changeable(made) & changeable(tool) == set()
    assert ours(tool).input_schema is tool.input_schema


def test_tools_are_copied_without_a_look_at_how_each_value_wants_to_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    tool = Tool(name="look", input_schema={"properties": {name: {"type": "string"} for name in "abcdefgh"}})
    copied: list[object] = []
    monkeypatch.setattr("pydantic.main.deepcopy", lambda value, memo=None: copied.append(value))

    made = tool.model_copy(deep=True, update={"name": "server__look"})

    assert made.input_schema == tool.input_schema
    assert copied == []


def test_a_turn_gets_the_messages_of_the_agents_own_history_uncopied_but_the_last() -> None:
    preparation.prepare()
    agent = Silent(AgentConfig("agent"))
    asks = PromptMessageExtended(role="assistant", tool_calls={"1": a_call()}, channels={"reasoning": [text("hm")]})
    history = [said("user", "one"), asks, RESULTS, said("assistant", "two"), said("user", "last")]
    agent.load_message_history(Unshared(history))

    messages = prepared(agent, [said("user", "new")])

    assert messages[:-1] == history
    assert [one is own for one, own in zip(messages, history, strict=False)] == [True] * 4 + [False]
    assert changeable(messages[4]) & changeable(history) == set()
    assert all(one is own for one, own in zip(agent.message_history, history, strict=True))


def test_a_turn_without_history_gets_the_templates_of_the_agents_own(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    agent, template = Silent(AgentConfig("agent")), said("user", "one")
    template.is_template = True
    agent.load_message_history(Unshared([template, said("user", "two"), said("assistant", "three")]))

    def alone(_: Any) -> Any:
        return SimpleNamespace(get_request_params=lambda _: RequestParams(use_history=False))

    monkeypatch.setattr(Silent, "_require_llm", alone)

    assert [one.first_text() for one in prepared(agent, [said("user", "new")])] == ["one", "new"]


def test_a_turn_that_cannot_be_prepared_leaves_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    agent, history = Silent(AgentConfig("agent")), [said("user", "one"), said("assistant", "two")]
    agent.load_message_history(Unshared(history))
    monkeypatch.delattr(Silent, "_require_llm")

    with pytest.raises(RuntimeError, match="no LLM"):
        prepared(agent, [said("user", "new")])

    assert agent.message_history == history
