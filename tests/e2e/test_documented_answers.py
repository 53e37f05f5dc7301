"""Answers that documents show as JSON have the keys of a gateway's answers; programs that they show run as they are."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import TYPE_CHECKING, Any

from tests.support.askable_callers import CAN_BE_ASKED
from tests.support.asking import asking_downstream
from tests.support.asking_gateways import gateway_of
from tests.support.calling import health
from tests.support.clients import MODERN_VERSION, raw_client
from tests.support.documents import pages
from tests.support.gateway import Agent, running, write_project
from tests.support.threads_api import http_of

if TYPE_CHECKING:
    from pathlib import Path

JSON = re.compile(r"^```json\n(.*?)^```", re.MULTILINE | re.DOTALL)
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
    page = pages()["docs/use/openai-api.md"]
    programs = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    async with running(write_project(tmp_path, {"concierge": Agent()}, gateway={"openai_api": True})) as served:
        text = "\nprint()\n".join(programs).replace("http://localhost:24200", served.base_url)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", text, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
    printed = "['concierge']\nWhat is a peer?\nWhat is a peer?\nAnd a sub-agent?"
    assert (process.returncode, out.decode()) == (0, printed), err.decode()
