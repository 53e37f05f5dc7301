"""One process of a stdio server, and the JSON-RPC messages between it and its connections.

Requests get ids of the process's own, so that the gateway's listing and the call after it, or all calls of a shared
process, repeat none. The process answers its first request, the greeting, before it has a connection: the answer is
given to the connection that takes the process.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from mcp_types import (
    METHOD_NOT_FOUND,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from pallas_gateway import child_processes
from pallas_gateway.errors import GatewayError
from pallas_gateway.json_size import MOST_VALUES_OF_SERVERS, has_too_many_values
from pallas_gateway.runtime.downstreams.programs.program_transport import DISCOVER, INITIALIZE, INITIALIZED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from mcp_types import JSONRPCMessage, RequestId

    from pallas_gateway.child_processes import ChildProcess
    from pallas_gateway.runtime.downstreams.programs.program_transport import Greeting
    from pallas_gateway.runtime.protocols import StdioProgram

    type ProgramAnswer = JSONRPCResponse | JSONRPCError
    type Deliver = Callable[[JSONRPCMessage], Awaitable[None]]

LONGEST_LINE = 64 * 2**20
"""Bytes of one message: a tool may return large files. A program that prints more without a line break is ended."""
MOST_IGNORED = 2**20
"""Bytes of lines that are no messages, or while no connection exists, after which a program is ended."""
MOST_UNSENT = 64 * 2**20
"""Bytes of messages that a program has not read, after which it is ended."""
_log = logging.getLogger("pallas.runtime")


class ProgramError(GatewayError):
    """A program cannot be used. The message is a clause for the log, the health check and the model."""

    reason = "program_failed"


class ProgramBusyError(ProgramError):
    """All processes of a program are in use."""


class ProgramProcess:
    """A process from its start to its end; `run` is awaited by a task of its own.

    Attributes:
        greeting: the latest greeting that was answered with a result; None before.
        answers: the answers to greetings, by key.
        connections: the receivers of its messages.
    """

    def __init__(self, program: StdioProgram, leave_seconds: float) -> None:
        self._program = program
        self._leave_seconds = leave_seconds
        self._process: ChildProcess | None = None
        self._has_begun = asyncio.Event()
        self._reading: asyncio.Timeout | None = None
        self._is_ending = False
        self._ids = count(1)
        self._pending: dict[int, tuple[Deliver, RequestId]] = {}
        self._own_requests: dict[int, asyncio.Future[ProgramAnswer]] = {}
        self._greeting = asyncio.Lock()
        self._why: str | None = None
        self.greeting: Greeting | None = None
        self.answers: dict[str, ProgramAnswer] = {}
        self.connections: dict[Deliver, Callable[[], None]] = {}

    @property
    def is_usable(self) -> bool:
        """True while it runs and is not being ended."""
        return not self._is_ending and self._why is None

    @property
    def has_open_requests(self) -> bool:
        """True if it has not answered all requests."""
        return bool(self._pending or self._own_requests)

    async def run(self) -> None:
        """Start the process, read its messages until it ends or `end` is called, and reap it."""
        stderr = self._program.processes.stderr
        try:
            self._process = process = await child_processes.start(
                self._program.command,
                self._program.arguments,
                environ=self._program.environ,
                directory=self._program.directory,
                longest_line=child_processes.PIECE,
                stderr=stderr,
            )
        except (OSError, ValueError) as error:
            program = self._program
            self._close(child_processes.why_not_started(program.command, program.directory, error, stderr))
            return
        self._has_begun.set()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(0 if self._is_ending else None) as self._reading:
                    await self._read(process)
            self._reading = None
            await self._note_end(process)
        finally:
            self._reading = None
            self._close("its process was ended")
            await child_processes.end(process, self._leave_seconds)

    def end(self) -> None:
        """Have `run` end the process."""
        self._is_ending = True
        if self._reading is not None:
            self._reading.reschedule(asyncio.get_running_loop().time())

    async def greet(self, greeting: Greeting) -> ProgramAnswer:
        """Send `greeting` if it was not sent before, and return its answer.

        Raises:
            ProgramError: the process could not be started, or ended before it answered.
        """
        async with self._greeting:
            return self.answers.get(greeting.key) or await self._greet(greeting)

    async def rehearse(self) -> None:
        """Have the process list its tools: servers load parts of themselves with the first request after the greeting.

        Raises:
            ProgramError: the process ended before it answered.
        """
        if self.greeting is None:
            return
        answer = self.answers[self.greeting.key]
        if isinstance(answer, JSONRPCResponse) and "tools" in (answer.result.get("capabilities") or {}):
            meta = self.greeting.params.get("_meta") if self.greeting.method == DISCOVER else None
            await self._ask("tools/list", {"_meta": meta} if meta else None)

    def send(self, message: JSONRPCMessage, sender: Deliver) -> None:
        """Send a message of the connection `sender`, which receives the answers.

        It does not wait until the program reads, so that the time limit of a request holds also if it never does.
        """
        match message:
            case JSONRPCRequest():
                number = next(self._ids)
                self._pending[number] = (sender, message.id)
                meta = (message.params or {}).get("_meta")
                changed: dict[str, Any] = {"id": number}
                if isinstance(meta, dict) and "progressToken" in meta:
                    changed["params"] = {**(message.params or {}), "_meta": {**meta, "progressToken": number}}
                message = message.model_copy(update=changed)
            case JSONRPCNotification(method="notifications/cancelled"):
                asked = (message.params or {}).get("requestId")
                number = next((one for one, known in self._pending.items() if known == (sender, asked)), 0)
                if not number:
                    return
                message = message.model_copy(update={"params": {**(message.params or {}), "requestId": number}})
        self._write(message)

    def disconnect(self, connection: Deliver) -> None:
        """Forget a connection, with its open requests."""
        self.connections.pop(connection, None)
        for number in [one for one, (sender, _) in self._pending.items() if sender == connection]:
            del self._pending[number]

    async def _greet(self, greeting: Greeting) -> ProgramAnswer:
        await self._has_begun.wait()
        self.answers[greeting.key] = found = await self._ask(greeting.method, greeting.params)
        if isinstance(found, JSONRPCResponse):
            self.greeting = greeting
            if greeting.method == INITIALIZE:
                self._write(JSONRPCNotification(jsonrpc="2.0", method=INITIALIZED))
        return found

    async def _ask(self, method: str, params: dict[str, Any] | None) -> ProgramAnswer:
        if self._why is not None:
            raise ProgramError(self._why)
        number, answer = next(self._ids), asyncio.get_running_loop().create_future()
        self._own_requests[number] = answer
        try:
            self._write(JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=params))
            found: ProgramAnswer = await answer
            return found
        finally:
            del self._own_requests[number]

    def _write(self, message: JSONRPCMessage) -> None:
        stdin = self._process.stdin if self._process is not None else None
        # A program that ends closes its input before its end is noted; uvloop then refuses to write.
        if stdin is None or stdin.is_closing() or not self.is_usable:
            return  # the connection sees the end of the stream
        # Without absent members: release 1 of the TypeScript SDK does not answer a message with `null` as params.
        stdin.write(message.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n")
        if stdin.transport.get_write_buffer_size() > MOST_UNSENT:
            self._close("its process does not read its input")
            self.end()

    async def _read(self, process: ChildProcess) -> None:
        with suppress(ConnectionError, ValueError):  # the latter: a line longer than any message
            async with aclosing(child_processes.lines(process.stdout, LONGEST_LINE)) as lines:
                await self._read_messages(lines)

    async def _read_messages(self, lines: AsyncIterator[bytes]) -> None:
        ignored = 0
        async for line in lines:
            await asyncio.sleep(0)  # lines that have arrived already are read without a pause
            if has_too_many_values(line, MOST_VALUES_OF_SERVERS):
                self._close(f"its process sent a message of more than {MOST_VALUES_OF_SERVERS:,} JSON values")
                return
            if await self._is_used(line):
                ignored = 0
                continue
            ignored += len(line) + 1
            if ignored > MOST_IGNORED:
                self._close(f"its process printed {MOST_IGNORED:,} bytes that are no messages of a call")
                return

    async def _is_used(self, line: bytes) -> bool:
        """Deliver a message; return False for what is none, and for one to no connection while there is none."""
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            _log.debug("downstream output ignored", extra={"command": self._program.command})
            return False
        is_answer = isinstance(message, JSONRPCResponse | JSONRPCError) and message.id in self._own_requests
        await self._deliver(message)
        return is_answer or bool(self.connections)

    async def _deliver(self, message: JSONRPCMessage) -> None:
        match message:
            case JSONRPCResponse(id=int() as number) | JSONRPCError(id=int() as number):
                if (greeted := self._own_requests.get(number)) is not None and not greeted.done():
                    greeted.set_result(message)
                elif (waiting := self._pending.pop(number, None)) is not None:
                    await waiting[0](message.model_copy(update={"id": waiting[1]}))
            case JSONRPCNotification(
                method="notifications/progress", params={"progressToken": int() as number} as params
            ):
                if (waiting := self._pending.get(number)) is not None:
                    told = {**(params or {}), "progressToken": waiting[1]}
                    await waiting[0](message.model_copy(update={"params": told}))
            case _ if len(self.connections) == 1 and not self._program.processes.shared:
                await next(iter(self.connections))(message)
            case JSONRPCRequest():
                self._refuse(message)

    def _refuse(self, request: JSONRPCRequest) -> None:
        """Answer a request that belongs to no connection, or to an unknown one of a shared process."""
        if request.method == "ping":
            self._write(JSONRPCResponse(jsonrpc="2.0", id=request.id, result={}))
        else:
            error = ErrorData(code=METHOD_NOT_FOUND, message="This client cannot be asked.")
            self._write(JSONRPCError(jsonrpc="2.0", id=request.id, error=error))

    async def _note_end(self, process: ChildProcess) -> None:
        """Keep the exit code of a process that ended by itself; one that only closed its output is ended."""
        if self._is_ending:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._leave_seconds):
                code = await process.wait()
                self._close(f"its process ended with code {code}")
        self._close("its process closed its output")

    def _close(self, why: str) -> None:
        """End the connections and requests; the first reason counts."""
        self._why = self._why or why
        self._has_begun.set()
        for answer in self._own_requests.values():
            if not answer.done():
                answer.set_exception(ProgramError(self._why))
        connections, self.connections = self.connections, {}
        for on_end in connections.values():
            on_end()
