"""Parameters of a call: who may set what, what the model is told, and that nothing of it is there for the next call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pallas_gateway.calls.parameters import listed_names
from tests.support.calling import EACH_VERSION, ask
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.gateway import Agent, until_idle
from tests.support.listener import reserved_port
from tests.support.scripted_llm import LlmRequest, Script, Turn, call_tools, echo, say
from tests.support.watching import DESK, PIPELINE, Stage, script_of, speaker, stage, turns_so_far

DEFAULTS = {"temperature": 0.5, "seed": 7, "systemAppend": "Be kind.", "extra": {"min_p": 1, "top_a": 2}}
MODELS = ["generic.test-model", "generic.other-model"]
AGENTS = {
    "solo": Agent(servers=["tools"], settings={"default_params": DEFAULTS}),
    "closed": Agent(settings={"caller_params": []}),
    "open": Agent(
        settings={
            "caller_params": ["max_tokens", "system_override", "model"],
            "models": MODELS,
            "model_capabilities": {"max_output_tokens": 100},
        }
    ),
    "guarded": Agent(servers=["tools"], settings={"default_params": {"tools_allowlist": ["tools/add", "tools__echo"]}}),
    "pipeline": Agent(source=PIPELINE),
    "desk": Agent(source=DESK),
}
ALLOWED = (
    "temperature (0 to 2), top_p (0 to 1), top_k (a whole number from 1 to 2^63 - 1), "
    "max_tokens (a whole number from 1 to 2^63 - 1), stop (1 to 4 texts), presence_penalty (-2 to 2), "
    "frequency_penalty (-2 to 2), seed (a whole number of 64 bits), response_format (an object), tool_choice (auto, "
    "none, required or an object), tools_allowlist (a list of at most 1000 texts), system_append (a text), "
    "extra (an object)."
)
PLAIN = {"model", "messages", "stream", "stream_options", "tools", "parallel_tool_calls", "max_tokens"}
"""What a request holds that nobody has set a parameter for."""


@asynccontextmanager
async def household(path: Path, script: Script = echo) -> AsyncGenerator[Stage]:
    async with stage(path, script, AGENTS) as staged:
        yield staged


def set_in(request: LlmRequest) -> dict[str, Any]:
    return {key: value for key, value in request.body.items() if key not in PLAIN}


def system_of(request: LlmRequest) -> str:
    return str(request.messages[0]["content"])


async def result_of(staged: Stage, agent: str, params: object, version: str = MODERN_VERSION) -> dict[str, Any]:
    async with raw_client(staged.url(agent), protocol_version=version) as client:
        return (await client.call_tool("send_message", {"message": "go", "params": params})).result


async def schema_of(staged: Stage, agent: str) -> dict[str, Any]:
    async with raw_client(staged.url(agent), protocol_version=MODERN_VERSION) as client:
        schema: dict[str, Any] = (await client.list_tools())[0]["inputSchema"]
    return schema


def names_in(schema: dict[str, Any]) -> list[str]:
    assert schema["properties"]["params"].keys() == {"type", "description"}  # clients warn of rarer keys
    return listed_names(schema["properties"]["params"])


async def test_the_request_counts_before_the_agents_defaults_and_nothing_stays_for_the_next_call(
    tmp_path: Path,
) -> None:
    async with household(tmp_path) as staged:
        url = staged.url("solo")
        await ask(url)
        await ask(
            url,
            params={
                "temperature": 1,
                "stop": "END",
                "extra": {"top_a": None, "min_tokens": 3},
                "systemAppend": "Sing.",
            },
        )
        await ask(url, params={"temperature": None, "seed": None, "extra": None, "system_append": None})
        await ask(url, params=None)
        by_default, by_request, cleared, again = staged.llm.requests

        assert set_in(by_default) == {"temperature": 0.5, "seed": 7, "min_p": 1, "top_a": 2}
        assert set_in(by_request) == {"temperature": 1, "seed": 7, "stop": ["END"], "min_p": 1, "min_tokens": 3}
        assert set_in(cleared) == {}
        assert again.body == by_default.body
        said = [system_of(one) for one in staged.llm.requests]
        assert said == [
            "You are solo.\n\nBe kind.",
            "You are solo.\n\nSing.",
            "You are solo.",
            "You are solo.\n\nBe kind.",
        ]


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_what_callers_may_not_set_is_refused_with_the_list_of_what_they_may(version: str, tmp_path: Path) -> None:
    wrong: dict[str, tuple[Any, str]] = {
        "a list": ([], "Argument 'params' must be an object."),
        "unknown": ({"temprature": 1}, "Unknown parameter 'temprature'."),
        "off by default": (
            {"system_override": "You are a pirate."},
            "Parameter 'system_override' is not for callers of this agent.",
        ),
        "a model": ({"model": "generic.gpt"}, "Parameter 'model' is not for callers of this agent."),
        "too hot": ({"temperature": 2.5}, "params.temperature must be 0 to 2."),
        "a text for a number": ({"top_k": "40"}, "params.top_k must be a whole number from 1 to 2^63 - 1."),
        "too many": ({"stop": list("abcde")}, "params.stop must be 1 to 4 texts."),
        "a search": ({"extra": {"enable_search": True}}, "params.extra must not hold 'enable_search'; it takes "),
        "by the back door": (
            {"extra": {"model": "gpt"}},
            "params.extra must not hold 'model'; it takes ",
        ),
    }
    async with household(tmp_path) as staged:
        for params, sentence in wrong.values():
            result = await result_of(staged, "solo", params, version)
            text = result["content"][0]["text"]
            assert result["isError"]
            assert result["_meta"]["pallas/call"]["stop_reason"] == "bad_params"
            assert text.startswith(sentence)
            assert text.endswith(f"Callers of this agent may set: {ALLOWED}")
        closed = await result_of(staged, "closed", {"temperature": 1}, version)
        assert closed["content"][0]["text"].startswith("Unknown argument 'params'. Arguments are: message, images,")
        foreign = await result_of(staged, "open", {"model": "generic.gpt"}, version)
        assert "may choose. Callers of this agent may set: max_tokens" in foreign["content"][0]["text"]
        assert foreign["content"][0]["text"].endswith(f"model ({', '.join(MODELS)}).")
        assert staged.llm.requests == []
        assert staged.served.metric("pallas_calls_refused_total", agent="solo", reason="bad_params") == len(wrong)


async def test_the_tools_schema_shows_exactly_what_this_agents_callers_may_set_also_after_a_reload(
    tmp_path: Path,
) -> None:
    async with household(tmp_path) as staged:
        solo, closed, some = [await schema_of(staged, name) for name in ("solo", "closed", "open")]
        for schema in (solo, closed, some):
            jsonschema.Draft202012Validator.check_schema(schema)
            jsonschema.validate({"message": "hi"}, schema)
        assert "params" not in closed["properties"]
        assert solo["properties"].keys() - closed["properties"].keys() == {"params"}
        assert names_in(some) == ["max_tokens", "system_override", "model"]
        jsonschema.validate({"message": "hi", "params": {"model": MODELS[1], "max_tokens": None}}, some)

        staged.served.project.edit(lambda file: file["agents"]["open"].update(caller_params=["seed"], models=[]))
        staged.served.project.edit(lambda file: file["agents"]["solo"].update(default_params={"seed": 8}))
        await staged.served.reload()

        assert names_in(await schema_of(staged, "open")) == ["seed"]
        await ask(staged.url("open"), params={"seed": 1})
        await ask(staged.url("solo"))
        assert [set_in(one) for one in staged.llm.requests] == [{"seed": 1}, {"seed": 8}]


async def test_callers_choose_a_model_and_an_instruction_for_a_call_where_the_agent_lets_them(tmp_path: Path) -> None:
    async with household(tmp_path) as staged:
        params = {"model": MODELS[1], "system_override": "You are {{file:agents.yaml}}.", "max_tokens": 5000}
        chosen = await result_of(staged, "open", params)
        await ask(staged.url("open"), params={"max_tokens": 50})
        first, second = staged.llm.requests

        assert (first.model, system_of(first)) == ("other-model", "You are {{file:agents.yaml}}.")
        assert first.body["max_tokens"] == 100
        assert chosen["_meta"]["pallas/params"] == {"changed": {"max_tokens": 100}}
        assert (second.model, system_of(second), second.body["max_tokens"]) == ("test-model", "You are open.", 50)


def uses_every_tool(request: LlmRequest) -> Turn:
    """A model that asks for two tools, whatever it was shown, and then repeats what they said."""
    if turns_so_far(request) == 0:
        return call_tools([("tools__echo", {"text": "hi"}), ("tools__add", {"a": 1, "b": 2})])
    return say(json.dumps(sorted(request.tool_results.values())))


async def test_a_declared_limit_of_answers_is_sent_to_a_server_of_ones_own_unless_the_caller_sets_a_lower_one(
    tmp_path: Path,
) -> None:
    capabilities = {"model_capabilities": {"max_output_tokens": 700}}
    agents = {
        "limited": Agent(settings=capabilities),
        "chain": Agent(source=PIPELINE, settings=capabilities),
        "open": Agent(settings={"model_capabilities": {"context_window": 8000}}),
    }
    async with stage(tmp_path, echo, agents) as staged:
        await ask(staged.url("limited"))
        await ask(staged.url("limited"), params={"max_tokens": 50})
        await ask(staged.url("limited"), params={"max_tokens": None})
        await ask(staged.url("chain"))
        await ask(staged.url("open"))
        *limited, last = (request.body.get("max_tokens") for request in staged.llm.requests)
    assert limited[:3] == [700, 50, 700]
    assert set(limited[3:]) == {700}
    assert last is None


async def test_an_allowlist_narrows_what_the_model_is_shown_and_what_it_can_run_and_never_widens_it(
    tmp_path: Path,
) -> None:
    refused = "Tool 'tools__add' is not allowed in this call. Allowed are: tools__echo."
    async with household(tmp_path, uses_every_tool) as staged:
        solo = await ask(staged.url("solo"), params={"tools_allowlist": ["tools/echo"]})
        shown = [one.tools for one in staged.llm.requests]
        assert shown == [["tools__echo"]] * 2
        assert json.loads(solo.text) == [refused, '{"result":"hi"}']

        staged.llm.requests.clear()
        wider = await ask(staged.url("guarded"), params={"tools_allowlist": ["tools/*", "tools/fail"]})
        assert sorted(staged.llm.requests[0].tools) == ["tools__add", "tools__echo"]
        assert '{"result":"hi"}' in json.loads(wider.text)

        staged.llm.requests.clear()
        none = await ask(staged.url("guarded"), params={"tools_allowlist": []})
        assert staged.llm.requests[0].tools == []
        assert [text.partition(".")[0] for text in json.loads(none.text)] == [
            "Tool 'tools__add' is not allowed in this call",
            "Tool 'tools__echo' is not allowed in this call",
        ]

        staged.llm.requests.clear()
        await ask(staged.url("guarded"), params={"tools_allowlist": None})
        assert sorted(staged.llm.requests[0].tools) == ["tools__add", "tools__echo"]
        await ask(staged.url("solo"))
        assert len(staged.llm.requests[-1].tools) > 2


async def test_a_forced_tool_is_forced_once_and_words_for_all_tools_hold_all_the_time(tmp_path: Path) -> None:
    one = {"type": "function", "function": {"name": "tools__echo"}}
    async with household(tmp_path, uses_every_tool) as staged:
        for choice in ("required", one, "auto"):
            await ask(staged.url("solo"), params={"tool_choice": choice})
        choices = [request.body.get("tool_choice") for request in staged.llm.requests]
        assert choices == ["required", None, one, None, "auto", "auto"]

        toolless = await result_of(staged, "open", {"max_tokens": 1})
        assert "pallas/params" not in toolless["_meta"]
        staged.llm.script = echo
        forced = await result_of(staged, "pipeline", {"tool_choice": "required", "top_k": 3})
        assert "pallas/params" not in forced["_meta"]  # its first agent has tools, which is enough


async def test_a_workflow_hands_parameters_to_each_agent_in_it_and_an_agent_not_to_those_it_uses_as_tools(
    tmp_path: Path,
) -> None:
    turns: dict[str, Any] = {
        "drafter": [say("draft")],
        "editor": [say("edited")],
        "desk": [call_tools([("agent__scout", {"message": "look"})]), say("done")],
        "scout": [say("seen")],
    }
    async with household(tmp_path, script_of(**turns)) as staged:
        params = {"temperature": 0.25, "system_append": "Be brief."}
        await ask(staged.url("pipeline"), params=params)
        await ask(staged.url("desk"), params=params)
        await until_idle(staged.served)
        told = [(speaker(one), set_in(one), "Be brief." in system_of(one)) for one in staged.llm.requests]

        assert told == [
            ("drafter", {"temperature": 0.25}, True),
            ("editor", {"temperature": 0.25}, True),
            ("desk", {"temperature": 0.25}, True),
            ("scout", {}, False),
            ("desk", {"temperature": 0.25}, True),
        ]


async def test_an_agents_model_is_not_shown_the_parameters_of_its_peers(tmp_path: Path) -> None:
    with reserved_port() as port:
        agents = {"boss": Agent(servers=["solo"]), "solo": Agent(settings={"port": port})}
        peers = {"solo": {"transport": "http", "url": f"http://localhost:{port}/mcp"}}
        async with stage(tmp_path, echo, agents, peers=peers) as staged:
            await ask(staged.url("boss"))
            [request] = staged.llm.requests
            shown = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request.body["tools"]}
            assert "params" not in shown["solo__send_message"]["properties"]
            assert "params" in (await schema_of(staged, "solo"))["properties"]


async def test_many_calls_at_once_each_have_their_own_parameters(tmp_path: Path) -> None:
    def says_its_seed(request: LlmRequest) -> Turn:
        return say(f"{request.last_user_text} {request.body.get('seed')} {request.tools}")

    async with household(tmp_path, says_its_seed) as staged:

        async def one(number: int) -> str:
            lists = {"tools_allowlist": ["tools/echo"]} if number % 2 else {"tools_allowlist": ["tools/add"]}
            answer = await ask(staged.url("solo"), f"call {number}", params={"seed": number, **lists})
            return answer.text

        answers = await asyncio.gather(*(one(number) for number in range(20)))
        tools = (["tools__add"], ["tools__echo"])
        assert answers == [f"call {number} {number} {tools[number % 2]}" for number in range(20)]
