"""The tools of docs/use/asking.md: they run as they stand there, and their questions reach the caller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from fastmcp import FastMCP

from tests.support.askable_callers import Person, accept, client_of, told
from tests.support.calling import ask
from tests.support.clients import MODERN_VERSION
from tests.support.gateway import Agent, declare_project, running, until_idle, write_project
from tests.support.listener import serve_app
from tests.support.scripted_llm import call_tools, say, scripted_llm

if TYPE_CHECKING:
    from tests.support.scripted_llm import LlmRequest, Turn

DOCUMENT = Path(__file__).parents[2] / "docs" / "use" / "asking.md"
WITH_SDK, WITH_FASTMCP = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)

[AGENTS] = re.findall(r"^```yaml\n(# agents\.yaml\n.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


def deletes(request: LlmRequest) -> Turn:
    """Call the tool, then repeat what it returns."""
    if request.tool_results:
        return say(" ".join(request.tool_results.values()))
    return call_tools([("files__delete_all", {"path": "old"})])


async def test_the_tool_is_tried_without_a_model_as_the_document_says(tmp_path: Path) -> None:
    [message] = re.findall(r"pallas-gateway call janitor '(.*)'", DOCUMENT.read_text())
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
