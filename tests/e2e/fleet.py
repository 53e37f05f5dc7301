"""A gateway of several workers in processes of its own, and what is seen of each from outside."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import Any

import httpx

from tests.support.askable_callers import CAN_BE_ASKED
from tests.support.clients import MODERN_VERSION, tool_params
from tests.support.commands import PATIENT_GATEWAY, READY_SECONDS, Program, started
from tests.support.exposition import Exposition
from tests.support.gateway import Agent, write_project
from tests.support.listener import reserved_port
from tests.support.patient_gateway import IMPATIENT, LATE_REQUESTS
from tests.support.scripted_llm import LlmRequest, ScriptedLlm, Turn, call_tools, hang, say, scripted_llm
from tests.support.waiting import Gate, eventually


@dataclass(frozen=True)
class WorkerManager:
    """A running `serve --workers`."""

    program: Program
    folder: Path
    llm: ScriptedLlm
    gate: Gate
    ports: Mapping[str, int]

    @property
    def base_url(self) -> str:
        """Where all workers answer."""
        return self.program.url.replace("localhost", "127.0.0.1")

    def url(self, agent: str) -> str:
        """An agent's MCP endpoint."""
        return f"{self.base_url}/agents/{agent}/mcp"

    @property
    def pids(self) -> set[int]:
        """The process ids of the workers."""
        started = {pid for pid in _children_of(self.program.pid) if b"start_worker" in _of(pid, "cmdline")}
        return started or set(_forked_for(self.program.pid))

    @property
    def log_text(self) -> str:
        """The log file so far."""
        return (self.folder / "pallas.log").read_text()

    def records(self, message: str) -> list[dict[str, Any]]:
        """The records of the log file with this message; a line that is not whole and not the last fails the test.

        Lines of workers come a moment later than what they tell of.
        """
        whole, _, _ = self.log_text.rpartition("\n")
        records = [json.loads(line) for line in whole.splitlines()]
        return [record for record in records if record["message"] == message]

    async def calls_ended(self, is_all: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """The records of calls, once they are all there."""
        await eventually(lambda: is_all(self.records("call ended")), what="a line for each call")
        return self.records("call ended")

    async def get(self, path: str) -> httpx.Response:
        """Ask on a connection of its own: of any worker."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            return await http.get(f"{self.base_url}{path}")

    async def metrics(self) -> Exposition:
        """`/metrics` of any worker."""
        return Exposition((await self.get("/metrics")).raise_for_status().text)

    async def metric(self, name: str, **labels: str) -> float:
        """One sample, 0 if there is none."""
        return (await self.metrics()).value(name, **labels) or 0.0

    @contextmanager
    def only(self, pid: int) -> Generator[None]:
        """Every other worker stands still: what comes meanwhile comes to this one."""
        others = self.pids - {pid}
        for other in others:
            stop_process(other)
        try:
            yield
        finally:
            for other in others:
                with suppress(ProcessLookupError):  # the test has killed it, and its parent has reaped it
                    os.kill(other, signal.SIGCONT)

    @asynccontextmanager
    async def client_of(
        self,
        pid: int,
        base_url: str | None = None,
        verify: SSLContext | bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[httpx.AsyncClient]:
        """A client that keeps its connection to this worker, while the others run."""
        base_url = base_url or self.base_url
        async with httpx.AsyncClient(
            headers=headers, base_url=base_url, verify=verify, trust_env=False, timeout=60
        ) as http:
            with self.only(pid):
                await http.get("/livez")  # below a prefix as well: any answer shows that it is connected
            yield http


ADA = {"action": "accept", "content": {"name": "Ada"}}
MODERN = {"mcp-protocol-version": MODERN_VERSION, "mcp-method": "tools/call", "mcp-name": "send_message"}


async def call_by(http: httpx.AsyncClient, url: str, told: str = "ask", **params: Any) -> dict[str, Any]:
    """The response to a call of 2026-07-28, or to the repeated request of one, by a client of one worker."""
    meta = {**CAN_BE_ASKED, "io.modelcontextprotocol/protocolVersion": MODERN_VERSION}
    whole = {**tool_params("send_message", {"message": told}), **params, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": whole}
    headers = {**MODERN, "accept": "application/json, text/event-stream"}
    return dict((await http.post(url, json=body, headers=headers)).json())


QUESTION = {"message": "Who?", "fields": [{"name": "name", "type": "text"}]}


@asynccontextmanager
async def fleet(
    path: Path,
    *arguments: str,
    workers: int = 2,
    is_patient: bool = True,
    late_requests: bool = False,
    **gateway: Any,
) -> AsyncGenerator[WorkerManager]:
    """Serve `root`, which may call its peer `peer`, with so many workers; ready when the block begins.

    With `late_requests` a stop waits for them, as outside of tests.
    """
    gate = Gate()
    folder = path / "project"
    async with AsyncExitStack() as stack:
        llm = await stack.enter_async_context(scripted_llm(lambda request: _script(request, gate)))
        ports = {name: stack.enter_context(reserved_port()) for name in ("root", "peer", "registry")}
        write_project(
            folder,
            {
                "root": Agent(servers=["peer"], settings={"port": ports["root"], "depends_on": ["peer"]}),
                "peer": Agent(settings={"port": ports["peer"]}, decorator="human_input=True"),
            },
            llm_url=llm.base_url,
            servers={"peer": {"transport": "http", "url": f"http://localhost:{ports['peer']}/mcp"}},
            gateway={"host": "127.0.0.1", **gateway},
            deployment={"registry_port": ports["registry"]},
        )
        environ = {"PALLAS_LOG_FILE": str(folder / "pallas.log"), "PALLAS_LOG_STDERR": "1"}
        if not is_patient:
            environ[IMPATIENT] = "1"
        if late_requests:
            environ[LATE_REQUESTS] = "1"
        program = stack.enter_context(
            started(["serve", "--workers", str(workers), *arguments], folder, command=PATIENT_GATEWAY, environ=environ)
        )
        await asyncio.to_thread(program.wait_for, "Try:", READY_SECONDS)
        yield WorkerManager(program, folder, llm, gate, ports)
        gate.open()
        program.signal(signal.SIGTERM)
        await asyncio.to_thread(program.end, READY_SECONDS)


def _script(request: LlmRequest, gate: Gate) -> Turn:
    told = request.last_user_text
    if told.startswith("hang"):
        return hang(gate, say("just in time"))
    if told.startswith("ask"):
        return _asking(told, list(request.tool_results.values()), gate)
    if request.tool_results:
        return say("delegated")
    if told.startswith("delegate "):
        return call_tools([("peer__send_message", {"message": told.removeprefix("delegate ")})])
    if told.startswith("late "):
        return hang(gate, call_tools([("peer__send_message", {"message": told.removeprefix("late ")})]))
    return say(f"said {told}")


def _asking(told: str, answers: list[str], gate: Gate) -> Turn:
    if not answers:
        return call_tools([("__human_input", QUESTION)])
    return hang(gate) if told == "ask hang" else say(answers[0])


def stop_process(pid: int) -> None:
    """Have a process stand still; returns when it does, which may be after the signal was sent.

    A process that stood still while it writes to SQLite would lock the others out: it goes on until it has written.
    """
    while True:
        os.kill(pid, signal.SIGSTOP)
        for status in Path(f"/proc/{pid}/task").glob("*/stat"):
            while _stat_of(status)[:1] not in (["T"], ["Z"], []):
                time.sleep(0)  # gives the processor away
        if not _writes_to_sqlite(pid):
            return
        os.kill(pid, signal.SIGCONT)


def _writes_to_sqlite(pid: int) -> bool:
    """Whether a process has a lock for writing, as SQLite takes them (proc_locks(5))."""
    locks = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(kind == "POSIX" and mode == "WRITE" and int(of) == pid for _, kind, _, mode, of, *_ in locks)


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    return _stat_of(Path(f"/proc/{pid}/stat"))[:1] not in ([], ["Z"])


def _stat_of(status: Path) -> list[str]:
    try:
        return status.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _children_of(pid: int) -> set[int]:
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        after_name = _stat_of(status)
        if after_name and int(after_name[1]) == pid and after_name[0] != "Z":
            found.add(int(status.parent.name))
    return found


def _forked_for(parent: int) -> Iterator[int]:
    """Yield the workers that `tests.support.patient_gateway` has not started, but forked; they have other parents."""
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if _of(pid, "comm") == f"worker {parent}\n".encode() and _stat_of(folder / "stat")[:1] != ["Z"]:
            yield pid


def _of(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""
