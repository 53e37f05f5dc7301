"""`python -m tests.figures.call_path`: the functions of the gateway that run for one call of each kind.

Figures, no bounds. A `serve` in a process of its own is called over HTTP. A function counts if it runs in each of three
calls, so what only happens to run meanwhile is left out. `--list` prints the functions of a kind; `--json` all figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tests.figures.house import CLASSES, PRODUCT, class_of
from tests.support.scripted_llm import LlmRequest, Turn

type Functions = frozenset[tuple[str, str]]
"""Modules, relative to the package, and qualified names in them."""

ROOT = Path(__file__).parents[2]
PACKAGE = f"{ROOT / 'pallas_gateway'}{os.sep}"
PORT = 24817
BASE = f"http://127.0.0.1:{PORT}"
WARM_UP_CALLS, CALLS = 3, 3
SETTLED_SECONDS = 0.3
"""After the answer the instance is closed, and the next one is made."""
INITIALIZE, MODERN = "2025-06-18", "2026-07-28"
CAN_BE_ASKED: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
HUMAN = ("__human_input", {"message": "Your name?", "fields": [{"name": "name", "type": "text", "required": True}]})


def serve_traced(arguments: list[str]) -> None:
    """Run the command line; a line on stdin begins or ends the recording, and names a file for it."""
    monitoring, tool = sys.monitoring, 4
    entered: set[tuple[str, str]] = set()

    def enter(code: Any, _: int) -> Any:
        if not code.co_filename.startswith(PACKAGE):
            return monitoring.DISABLE
        if not code.co_name.startswith("<"):
            entered.add((code.co_filename.removeprefix(PACKAGE), code.co_qualname))
        return None

    def obey() -> None:
        for number, line in enumerate(sys.stdin):
            monitoring.set_events(tool, 0 if number % 2 else monitoring.events.PY_START)
            found = sorted(entered)
            entered.clear()
            file = Path(line.strip())
            file.with_suffix(".part").write_text(json.dumps(found))
            file.with_suffix(".part").rename(file)

    monitoring.use_tool_id(tool, "path")
    monitoring.register_callback(tool, monitoring.events.PY_START, enter)
    threading.Thread(target=obey, daemon=True).start()
    from pallas_gateway.cli.app import main  # noqa: PLC0415  only in this process

    main(arguments)


@dataclass
class Traced:
    """A gateway in a process of its own."""

    process: asyncio.subprocess.Process
    folder: Path
    http: httpx.AsyncClient

    async def functions(self, call: Callable[[], Awaitable[None]]) -> Functions:
        """The functions that run in each of some calls."""
        for _ in range(WARM_UP_CALLS):
            await call()
        found = [await self._once(call) for _ in range(CALLS)]
        return frozenset.intersection(*found)

    async def _once(self, call: Callable[[], Awaitable[None]]) -> Functions:
        await asyncio.sleep(SETTLED_SECONDS)
        await self._switch()
        await call()
        await asyncio.sleep(SETTLED_SECONDS)
        return frozenset((module, name) for module, name in await self._switch())

    async def _switch(self) -> list[tuple[str, str]]:
        """Begin or end the recording; returns the functions entered since it began."""
        file = self.folder / "functions.json"
        assert self.process.stdin is not None
        self.process.stdin.write(f"{file}\n".encode())
        async with asyncio.timeout(10):
            while not file.exists():  # noqa: ASYNC110  another process makes it
                await asyncio.sleep(0.01)
        found: list[tuple[str, str]] = json.loads(file.read_text())
        file.unlink()
        return found

    async def post(self, path: str, body: dict[str, Any]) -> str:
        answer = await self.http.post(f"{BASE}{path}", json=body)
        return answer.raise_for_status().text

    async def send(self, version: str, agent: str, message: str, **params: Any) -> dict[str, Any]:
        """Call `send_message`; return the result."""
        from tests.support.clients import raw_client  # noqa: PLC0415  not in the traced process

        meta = CAN_BE_ASKED if version == MODERN else None
        async with raw_client(f"{BASE}/agents/{agent}/mcp", protocol_version=version) as client:
            sent = {"name": "send_message", "arguments": {"message": message}, **params}
            reply = await client.request("tools/call", sent, meta=meta)
        assert not reply.result.get("isError"), reply.result
        return dict(reply.result)

    async def ask_and_resume(self) -> None:
        asked = await self.send(MODERN, "asker", "ask me")
        answers = {key: {"action": "accept", "content": {"name": "Ada"}} for key in asked["inputRequests"]}
        again = {"requestState": asked["requestState"], "inputResponses": answers}
        assert "Ada" in str(await self.send(MODERN, "asker", "ask me", **again))


def script(request: LlmRequest) -> Turn:
    """The model: calls the tool that the message names, then repeats its result."""
    from tests.support.scripted_llm import call_tools, say  # noqa: PLC0415  not in the traced process

    if request.tool_results:
        return say(" | ".join(request.tool_results.values()))
    tools = {"use it": ("tools__echo", {"text": "x"}), "hand on": ("solo__send_message", {"message": "hello"})}
    tool = HUMAN if request.last_user_text == "ask me" else tools.get(request.last_user_text)
    return say("Done.") if tool is None else call_tools([tool])


@asynccontextmanager
async def traced() -> AsyncIterator[Traced]:
    """A gateway with an agent for each kind of call."""
    from tests.support.downstreams import stateless_downstream  # noqa: PLC0415  not in the traced process
    from tests.support.gateway import Agent, write_project  # noqa: PLC0415  likewise
    from tests.support.scripted_llm import scripted_llm  # noqa: PLC0415  likewise

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        tools = await stack.enter_async_context(stateless_downstream())
        llm = await stack.enter_async_context(scripted_llm(script))
        agents = {
            "solo": Agent(),
            "tooled": Agent(["tools"]),
            "parent": Agent(["solo"], settings={"depends_on": ["solo"]}),
            "asker": Agent(decorator="human_input=True"),
        }
        project = write_project(
            folder / "project",
            agents,
            llm_url=llm.base_url,
            servers={"tools": {"transport": "http", "url": tools.url}},
            gateway={"port": PORT, "openai_api": True, "database": "sqlite:///threads.db"},
        )
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(project.path)])}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __spec__.name, "--serve", "serve", "--config", "agents.yaml"),
            cwd=project.path,
            env=environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=(folder / "log").open("wb"),
        )
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=60))
        try:
            await _ready(http, folder / "log", process)
            yield Traced(process, folder, http)
        finally:
            process.terminate()
            await process.wait()


async def _ready(http: httpx.AsyncClient, log: Path, process: asyncio.subprocess.Process) -> None:
    for _ in range(600):
        try:
            if (await http.get(f"{BASE}/readyz")).is_success:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        if process.returncode is not None:
            break
        await asyncio.sleep(0.1)
    raise SystemExit(f"the gateway did not start:\n{log.read_text()}")


async def measure() -> dict[str, Functions]:
    async with traced() as gateway:
        message = {"model": "solo", "messages": [{"role": "user", "content": "hello"}]}

        async def openai() -> None:
            await gateway.post("/v1/chat/completions", message)

        async def thread() -> None:
            await gateway.post("/api/v1/agents/solo/chat", {"message": "hello"})

        async def send(version: str, agent: str, text: str) -> None:
            await gateway.send(version, agent, text)

        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "send_message, initialize era": lambda: send(INITIALIZE, "solo", "hello"),
            "send_message, 2026-07-28": lambda: send(MODERN, "solo", "hello"),
            "with a tool of a downstream": lambda: send(INITIALIZE, "tooled", "use it"),
            "OpenAI API": openai,
            "turn of a thread": thread,
            "nested call": lambda: send(INITIALIZE, "parent", "hand on"),
            "question asked and resumed": gateway.ask_and_resume,
        }
        return {kind: await gateway.functions(call) for kind, call in kinds.items()}


def table(found: dict[str, Functions]) -> str:
    """Functions and modules of each kind by class, as Markdown."""
    shown = [name for name in CLASSES if any(class_of(module) == name for all_ in found.values() for module, _ in all_)]
    rows = [f"| one call: functions in modules | together | {' | '.join(shown)} |", f"|---|---|{'---|' * len(shown)}"]
    for kind, functions in found.items():
        parts = [frozenset(one for one in functions if class_of(one[0]) == name) for name in shown]
        cells = [f"{len(part)} in {len({module for module, _ in part})}" for part in (functions, *parts)]
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(rows)


def listing(functions: Functions) -> str:
    modules: dict[str, list[str]] = {}
    for module, name in sorted(functions):
        modules.setdefault(module, []).append(name.replace(".<locals>", ""))
    return "\n".join(
        f"{module}{'' if class_of(module) == PRODUCT else f' ({class_of(module)})'}: {', '.join(names)}"
        for module, names in modules.items()
    )


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve_traced(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", metavar="KIND", help="also print the functions of a kind, such as 'nested call'")
    parser.add_argument("--json", action="store_true", help="print the functions of all kinds as JSON")
    chosen = parser.parse_args()
    found = asyncio.run(measure())
    if chosen.json:
        print(json.dumps({kind: sorted(functions) for kind, functions in found.items()}))
        return
    print(table(found))
    if chosen.list:
        print(listing(found[chosen.list]))


if __name__ == "__main__":
    main()
