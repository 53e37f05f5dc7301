"""Answers that documents show as JSON have the keys of a gateway's answers; programs that they show run as they are."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from fastmcp import FastMCP

from tests.support.askable_callers import CAN_BE_ASKED, Person, accept, client_of, told
from tests.support.asking import asking_downstream
from tests.support.asking_gateways import gateway_of
from tests.support.calling import ask, health
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.documents import pages
from tests.support.gateway import Agent, declare_project, gateway_and_model, running, until_idle, write_project
from tests.support.listener import serve_app
from tests.support.scripted_llm import LlmRequest, Reply, Turn, call_tools, say, scripted_llm
from tests.support.threads_api import http_of

JSON, PYTHON = (re.compile(rf"^```{one}\n(.*?)^```", re.MULTILINE | re.DOTALL) for one in ("json", "python"))
ANSWERS = {
    "registry entry": ("docs/use/clients.md", "$schema"),
    "front page": ("docs/use/clients.md", "all_agents"),
    "facts of a call": ("docs/use/clients.md", "stop_reason"),
    "input required": ("docs/use/clients.md", "inputRequests"),
    "chat": ("docs/use/threads.md", "stopReason"),
    "question": ("docs/use/threads.md", "callPath"),
    "stored tool call": ("docs/use/threads.md", "toolCalls"),
    "calls": ("docs/operate/calls.md", "calls"),
    "usage": ("docs/operate/limits.md", "nestedCalls"),
    "health": ("docs/operate/health.md", "downstream"),
    "refused definition": ("docs/use/agents-as-data.md", "problems"),
}
"""The block that shows each answer: its page, and a key that no other block of the page has."""
OPEN = {"schema", "requestedSchema", "args"}
"""Keys with values whose keys are those of an agent or a tool."""
OF_FAILURES = {"message", "downstream error", "llm error"}
"""Keys of the document of health of an agent that is not well."""
ID = r"(?=.*\d)[0-9a-f]+…?"
SENTENCE = "name"  # has the scripted model call the tool `name`, which asks
CAPABILITIES = {"vision": True, "documents": True, "context_window": 200_000, "max_output_tokens": 32_000}
SETTINGS = {
    "title": "User",
    "description": "Asks.",
    "icons": [{"src": "icons/48.png", "sizes": ["48x48"]}],
    "model_capabilities": CAPABILITIES,
}


def documented(name: str) -> list[Any]:
    page, key = ANSWERS[name]
    [found] = [one for one in JSON.findall(pages()[page]) if f'"{key}":' in one]
    decoder, values, text = json.JSONDecoder(), [], found.replace("{…}", "{}").strip()
    while text:
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:].lstrip()
    return values


def keys_of(value: Any, path: str = "") -> set[str]:
    """The paths of all keys; those of lists count together, and an id as a key is `*`."""
    if isinstance(value, list):
        return set().union(*(keys_of(one, path) for one in value))
    if not isinstance(value, dict):
        return set()
    found: set[str] = set()
    for key, below in value.items():
        here = f"{path} {'*' if re.fullmatch(ID, key) else key}".strip()
        found |= {here} if key in OPEN else {here} | keys_of(below, here)
    return found


def test_keys_of_lists_ids_and_open_values() -> None:
    value = {"a": [{"b": 1}, {"c": {"3f1c…": {"d": 2}}}], "schema": {"e": {}}}
    assert keys_of(value) == {"a", "a b", "a c", "a c *", "a c * d", "schema"}


async def test_answers_have_the_keys_that_documents_show(tmp_path: Path) -> None:
    gateway = {"database": "sqlite:///threads.db", "limits": {"rules": [{"agent": "*", "calls_per_minute": 60}]}}
    released = {"agents_may_use": {"models": ["passthrough"], "most": {"max_iterations": 20}}}
    async with (
        asking_downstream("modern") as downstream,
        gateway_of(
            tmp_path,
            {"url": downstream.url},
            Agent(["asking"], settings=SETTINGS),
            gateway={**gateway, **released},
            deployment={"version": "2.1.0"},
        ) as served,
        http_of(served) as http,
        raw_client(served.url("user"), protocol_version=MODERN_VERSION) as mcp,
    ):
        first = (await http.get(served.base_url, headers={"Accept": "application/json"})).json()
        entry = (await http.get(first["registry"].replace("localhost", "127.0.0.1"))).json()["servers"][0]
        asked = (await http.post("/agents/user/chat", json={"message": SENTENCE})).json()
        calls = (await http.get("/calls")).json()
        thread, [question] = asked["threadId"], asked["questions"]
        accepted = {"action": "accept", "content": {"name": "Ada"}}
        chat = (await http.post(f"/threads/{thread}/answers", json={"answers": {question["id"]: accepted}})).json()
        messages = (await http.get(f"/threads/{thread}/messages?tools=true")).json()["messages"]
        required = (await mcp.call_tool("send_message", {"message": SENTENCE}, meta=CAN_BE_ASKED)).result
        answers = dict.fromkeys(required["inputRequests"], accepted)
        again = {
            "name": "send_message",
            "arguments": {"message": SENTENCE},
            "requestState": required["requestState"],
            "inputResponses": answers,
        }
        done = (await mcp.request("tools/call", again, meta=CAN_BE_ASKED)).result
        definition = {"name": "poet", "instruction": "You write.", "model": "passthrough", "maxIterations": 10**6}
        real = {
            "registry entry": entry,
            "front page": first,
            "facts of a call": done["_meta"]["pallas/call"],
            "input required": required,
            "chat": chat,
            "question": question,
            "stored tool call": [one for one in messages if "toolCalls" in one or one["role"] == "tool"],
            "calls": calls,
            "usage": (await http.get("/usage")).json(),
            "health": await health(served.url("user")),
            "refused definition": (await http.post("/agents", json=definition)).json(),
        }
    required["_meta"] = {"pallas/questions": required["_meta"]["pallas/questions"]}
    assert real["refused definition"]["problems"][0] == documented("refused definition")[0]["problems"][0]
    shown = {name: keys_of(documented(name)) for name in ANSWERS}
    shown["health"] -= OF_FAILURES
    assert shown == {name: without_elided(name, keys_of(value)) for name, value in real.items()}


def without_elided(name: str, keys: set[str]) -> set[str]:
    """Leave out what the document leaves out: below `{…}`, `[]`, and where the schema of a question says it."""
    empty = {path for path in keys_of(documented(name)) if is_empty(documented(name), path)}
    return {key for key in keys if not any(key.startswith(f"{path} ") for path in empty)}


def is_empty(value: Any, path: str) -> bool:
    """Return whether a key has a list or an object without content, wherever it is."""
    first, _, rest = path.partition(" ")
    if isinstance(value, list):
        return any(is_empty(one, path) for one in value)
    return (
        False
        if not isinstance(value, dict)
        else any(is_empty(below, rest) if rest else below in ([], {}) for key, below in value.items() if key == first)
    )


async def test_programs_of_openais_client_print_what_an_agent_says(tmp_path: Path) -> None:
    programs = PYTHON.findall(pages()["docs/use/openai-api.md"])
    async with running(write_project(tmp_path, {"concierge": Agent()}, gateway={"openai_api": True})) as served:
        text = "\nprint()\n".join(programs).replace("http://localhost:24200", served.base_url)
        said = await printed("-c", text, folder=tmp_path)
    assert said == "['concierge']\nWhat is a peer?\nWhat is a peer?\nAnd a sub-agent?"


async def printed(*arguments: str, folder: Path) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=folder, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return out.decode()


[PROGRAM] = PYTHON.findall(pages()["docs/use/cases.md"])
[SCHEMA] = map(json.loads, JSON.findall(pages()["docs/use/cases.md"]))
IMAGE = {
    "mime_type": "image/png",
    "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
}
SAID = [{"role": "user", "content": "I am Ada."}, {"role": "assistant", "content": "Hello Ada."}]


def case(number: int, message: str, output: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"c/{number}", "agent": "echo", "url": "", "model": None, "params": {}, "history": [],
        "message": message, "images": [], "output": output, "output_images": 0, "tools": [], "rating": "good",
        "note": "", "asked_at": "2026-11-24T10:00:00.000Z", "rated_at": "2026-11-24T10:01:00.000Z", **more,
    }  # fmt: skip


def script(request: LlmRequest) -> Turn:
    if request.last_user_text == "fail":
        return Reply(400, b'{"error": {"message": "no"}}', "application/json")
    return say(f"{' '.join(request.user_texts)} at {request.body.get('temperature')}")


async def test_the_program_repeats_each_case_with_its_history_parameters_and_images(tmp_path: Path) -> None:
    settings = {"caller_params": ["temperature"], "model_capabilities": {"vision": True}}
    async with gateway_and_model(tmp_path / "project", {"echo": Agent(settings=settings)}, script) as (served, llm):
        cases = [
            case(1, "Who?", "I am Ada. Who? at 0.5", history=SAID, params={"temperature": 0.5}),
            case(2, "Look", "Nothing.", rating="bad", images=[IMAGE], url=served.url("echo")),
            case(3, "fail", "fine"),
        ]
        document = {"format": "pallas-gateway-cases", "version": 1, "cases": cases}
        jsonschema.validate(document, SCHEMA)
        (tmp_path / "cases.json").write_text(json.dumps(document))
        (tmp_path / "repeat.py").write_text(PROGRAM)
        lines = (await printed("repeat.py", "cases.json", served.url("echo"), folder=tmp_path)).splitlines()
        sent: list[Mapping[str, Any]] = [request.body for request in llm.requests]
    assert lines[0] == "c/1  rated good, now same: 'I am Ada. Who? at 0.5'"
    assert lines[1] == "c/2  rated bad, now different: 'Look at None'"
    assert lines[2].startswith("c/3  rated good, now different: '(failed: ")
    assert IMAGE["data"] in json.dumps(sent[1])


# --- docs/use/asking.md: its tools run as they stand there, and their questions reach the caller


ASKING = pages()["docs/use/asking.md"]
WITH_SDK, WITH_FASTMCP = PYTHON.findall(ASKING)
[AGENTS] = re.findall(r"^```yaml\n(# agents\.yaml\n.*?)^```", ASKING, re.MULTILINE | re.DOTALL)


def deletes(request: LlmRequest) -> Turn:
    """Call the tool, then repeat what it returns."""
    if request.tool_results:
        return say(" ".join(request.tool_results.values()))
    return call_tools([("files__delete_all", {"path": "old"})])


async def test_the_tool_is_tried_without_a_model_as_the_document_says(tmp_path: Path) -> None:
    [message] = re.findall(r"pallas-gateway call janitor '(.*)'", ASKING)
    async with serve_app(app_of(WITH_SDK)) as listener:
        servers = {"files": {"url": f"{listener.base_url}/mcp"}}
        project = declare_project(tmp_path, yaml.safe_load(AGENTS)["agents"], servers=servers)
        async with running(project) as served:
            person = Person(accept(delete=True))
            async with client_of(served.url("janitor"), person, MODERN_VERSION) as client:
                assert "All files in old are deleted." in await told(client, message)
            await until_idle(served)


def app_of(program: str) -> Any:
    names: dict[str, Any] = {"__name__": "files"}
    exec(program, names)  # noqa: S102  the document's own text
    server = names["server"]
    return server.http_app() if isinstance(server, FastMCP) else server.streamable_http_app()


@pytest.mark.parametrize(
    ("program", "mode", "field"),
    [
        pytest.param(WITH_SDK, "modern", "delete", id="sdk, 2026-07-28"),
        pytest.param(WITH_SDK, "legacy", "delete", id="sdk, initialize era"),
        pytest.param(WITH_FASTMCP, "legacy", "value", id="fastmcp"),
    ],
)
async def test_the_tools_of_the_document_ask_the_caller(program: str, mode: str, field: str, tmp_path: Path) -> None:
    async with scripted_llm(deletes) as llm, serve_app(app_of(program)) as listener:
        servers = {"files": {"url": f"{listener.base_url}/mcp", "protocol_mode": mode}}
        project = write_project(tmp_path, {"user": Agent(["files"])}, llm_url=llm.base_url, servers=servers)
        async with running(project) as served:
            person = Person(accept(**{field: True}), accept(**{field: False}))
            async with client_of(served.url("user"), person, MODERN_VERSION) as client:
                assert "All files in old are deleted." in await told(client, "go")
                assert "Nothing was deleted in old: the person did not agree." in await told(client, "go")
            assert {one.message for one in person.asked} == {"files: Delete all files in old?"}
            unasked = (await ask(served.url("user"), "go")).text
            assert "cannot be asked" in unasked
            assert unasked.startswith(("The tool has a question", "The server 'files' wanted to ask"))  # not the SDK's
            assert "are deleted" not in unasked
            await until_idle(served)
