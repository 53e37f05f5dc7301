"""What each provider of fast-agent is told of a call's parameters: asked once each, of one gateway, over real HTTP."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.dialects import ANSWER, polyglot_llm
from tests.support.downstreams import stateless_downstream
from tests.support.gateway import Agent, running, write_project

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.dialects import Asked, PolyglotLlm
    from tests.support.gateway import Running

pytestmark = pytest.mark.usefixtures("no_trust_store")

MODELS = {
    "openai": "openai.gpt-4.1",
    "azure": "azure.deployment",
    "generic": "generic.test-model",
    "openrouter": "openrouter.vendor/model",
    "groq": "groq.qwen/qwen3-32b",
    "hf": "hf.moonshotai/Kimi-K2-Instruct-0905",
    "aliyun": "aliyun.qwen-turbo",
    "zai": "zai.glm-5.2",
    "moonshot": "moonshot.kimi-k3",
    "googleoai": "googleoai.gemini-2.5-pro",
    "tensorzero": "tensorzero.function",
    "responses": "responses.gpt-4.1?transport=sse",
    "deepseek": "deepseek.deepseek-flash",
    "xai": "xai.grok-4.7?transport=sse",
    "metaai": "metaai.muse-spark-1.3",
    "openresponses": "openresponses.test-model",
    "anthropic": "anthropic.claude-sonnet-4-6?reasoning=off",
    "anthropic-opus": "anthropic.claude-opus-5",
}
"""A model of each provider that takes a base_url; two of Anthropic's, whose newer ones have no sampling parameters."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
PARAMS: dict[str, Any] = {
    "temperature": 0.25,
    "top_p": 0.75,
    "top_k": 40,
    "max_tokens": 321,
    "stop": "END",
    "presence_penalty": 0.5,
    "frequency_penalty": 0.125,
    "seed": 42,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "tool_choice": {"type": "function", "function": {"name": "tools__echo"}},
    "extra": {"dry_sequence_breakers": ["*", "\n"]},
}
SAME_EVERYWHERE = {name: (name, PARAMS[name]) for name in ("temperature", "top_p", "top_k", "seed")}
WIRE: Mapping[str, Mapping[str, tuple[str, Any]]] = {
    "completions": {
        "max_tokens": ("max_tokens max_completion_tokens", 321),
        "stop": ("stop", ["END"]),
        "response_format": ("response_format", PARAMS["response_format"]),
        "tool_choice": ("tool_choice", PARAMS["tool_choice"]),
    },
    "responses": {
        "max_tokens": ("max_output_tokens", 321),
        "stop": ("stop", ["END"]),
        "response_format": ("text", {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}),
        "tool_choice": ("tool_choice", {"type": "function", "name": "tools__echo"}),
    },
    "messages": {
        "max_tokens": ("max_tokens", 321),
        "stop": ("stop_sequences", ["END"]),
        "response_format": ("output_config", {"format": {"type": "json_schema", "schema": SCHEMA}}),
        "tool_choice": ("tool_choice", {"type": "tool", "name": "tools__echo"}),
    },
}
DOCUMENT = Path(__file__).parents[2] / "docs" / "parameters.md"


def where(protocol: str, name: str) -> tuple[str, Any]:
    """The keys of a request's body that may hold a parameter, and what they hold then."""
    if name == "extra":
        [(key, value)] = PARAMS["extra"].items()
        return key, value
    return {**SAME_EVERYWHERE, **WIRE[protocol]}.get(name, (name, PARAMS[name]))


def was_told(asked: list[Asked], name: str) -> bool:
    """Whether a request held a parameter; `AssertionError` if it held another value."""
    keys, value = where(asked[0].protocol, name)
    found = [one.body[key] for one in asked for key in keys.split() if key in one.body]
    assert all(one == value for one in found), (name, found)
    return bool(found)


def providers(llm: PolyglotLlm) -> dict[str, Any]:
    """The providers' sections of fastagent.config.yaml."""
    named = {"googleoai": "google"}
    places = [name for name in MODELS if name != "anthropic-opus"]
    blocks = {
        named.get(name, name): {"api_key": "not-a-key", "base_url": f"{llm.base_url}/{name}/v1"} for name in places
    }
    blocks["anthropic"]["base_url"] = f"{llm.base_url}/anthropic"
    azure = {"base_url": f"{llm.base_url}/azure", "azure_deployment": "deployment", "api_version": "2024-10-21"}
    return {**blocks, "azure": {"api_key": "not-a-key", **azure}}


async def ignored_by(name: str, served: Running, llm: PolyglotLlm) -> set[str]:
    """What the result says was ignored, after what was sent has shown the same."""
    llm.asked.clear()
    async with raw_client(served.url(name), protocol_version=MODERN_VERSION) as client:
        result = (await client.call_tool("send_message", {"message": "hi", "params": PARAMS})).result
    assert [block["text"] for block in result["content"]] == [ANSWER], name
    told = {param for param in PARAMS if was_told(llm.asked, param)}
    ignored = set(result["_meta"].get("pallas/params", {}).get("ignored", ()))
    assert ignored == PARAMS.keys() - told, name
    return ignored


async def test_a_result_names_exactly_what_its_provider_was_not_told_and_the_documents_table_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLEOAI_API_KEY", "not-a-key")  # its section is Google's, which has the address only
    async with polyglot_llm() as llm, stateless_downstream() as tools:
        servers = {"tools": {"transport": "http", "url": tools.url}}
        known = {"model_capabilities": {"max_output_tokens": 4096}}
        agents = {name: Agent(model=model, servers=["tools"], settings=known) for name, model in MODELS.items()}
        project = write_project(tmp_path, agents, servers=servers, fastagent=providers(llm))
        async with running(project) as served:
            ignored = {name: await ignored_by(name, served, llm) for name in MODELS}
    forget_open_clients()

    assert table(ignored) in DOCUMENT.read_text()


def forget_open_clients() -> None:
    """fast-agent never closes the HTTP client that it makes for a call of Anthropic's models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def table(ignored: Mapping[str, set[str]]) -> str:
    """The table as the document holds it."""
    rows = [f"| model | {' | '.join(f'`{name}`' for name in PARAMS)} |", "|---" * (len(PARAMS) + 1) + "|"]
    for name, model in MODELS.items():
        cells = ("" if param in ignored[name] else "yes" for param in PARAMS)
        rows.append(f"| `{model.partition('?')[0]}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
