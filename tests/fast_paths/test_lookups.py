"""What is looked up in short is what fast-agent finds."""

import inspect
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest
from fast_agent.agents import mcp_agent
from fast_agent.agents.agent_types import AgentConfig
from fast_agent.agents.mcp_agent import McpAgent
from fast_agent.agents.subagent_directive import resolve_subagent_directive
from fast_agent.config import GenericSettings, Settings
from fast_agent.core.instruction import InstructionBuilder
from fast_agent.llm.provider_key_manager import ProviderKeyManager
from mcp_types import TextContent
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import INVALID_SPAN, ProxyTracer, SpanKind, get_current_span
from typing_extensions import get_protocol_members

from pallas_gateway.fast_paths import lookups
from pallas_gateway.runtime import preparation


@pytest.mark.parametrize("key", ["a-key", None])
def test_a_providers_key_is_found_in_the_settings(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    monkeypatch.setattr(Settings, "model_dump", None)  # they are not dumped

    found = ProviderKeyManager.get_config_file_key("generic", Settings(generic=GenericSettings(api_key=key)))

    assert found == key
    assert ProviderKeyManager.get_config_file_key("generic", {"generic": {"api_key": key}}) == key
    assert ProviderKeyManager.get_config_file_key("nowhere", Settings()) is None


def test_a_known_class_fulfils_its_protocol() -> None:
    preparation.prepare()
    instances = [McpAgent(AgentConfig("agent")), Settings(), TextContent(type="text", text="")]

    for name, known in lookups.IMPLEMENTATIONS.items():
        first, protocol = resolve_name(name)
        instance = next(one for one in instances if isinstance(one, first))
        assert first is resolve_name(known)
        assert isinstance(instance, protocol), name
        assert all(hasattr(instance, member) for member in get_protocol_members(protocol)), name


def test_each_llm_looks_for_a_model_once() -> None:
    asked: list[str] = []
    find = lookups.remembering(lambda _, name: asked.append(name), None)

    for llm in (SimpleNamespace(), SimpleNamespace()):
        assert [find(llm, name) for name in ("one", "two", "one")] == [None] * 3
    assert asked == ["one", "two"] * 2


@pytest.mark.parametrize("text", ["You help.", "Reply {this}.", "It is {{where}}.", r"Write \{{name\}}.", r"End \}}."])
async def test_an_instruction_has_the_text_that_fast_agent_makes(text: str) -> None:
    preparation.prepare()
    ours, theirs = (InstructionBuilder(text).set("where", "here") for _ in range(2))

    assert await ours.build() == await inspect.unwrap(InstructionBuilder.build)(theirs)


def test_spans_that_nothing_records_are_the_current_one() -> None:
    preparation.prepare()
    ours, agents = (ProxyTracer(name) for name in ("fast_agent.agents", "an_agent"))

    with ours.start_as_current_span("one", kind=SpanKind.CLIENT) as span:
        assert span is get_current_span() is INVALID_SPAN
    with TracerProvider().get_tracer("gateway").start_as_current_span("gateway") as outer:
        with ours.start_as_current_span("inner") as inner:
            assert inner is get_current_span() is not outer
        assert inner.get_span_context() == outer.get_span_context()
    assert agents.start_as_current_span("decorated")(lambda: 5)() == 5


@pytest.mark.parametrize("text", ["You help.", "fast-agent-subagents\nYou help.", "See fast-agent-subagents.", ""])
def test_parts_for_subagents_are_found(text: str) -> None:
    preparation.prepare()
    assert vars(mcp_agent)["resolve_subagent_directive"](text) == resolve_subagent_directive(text)
