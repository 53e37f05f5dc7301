"""Probe of a stdio downstream: starts its program, sends one request and ends it; and the requests of all probes.

The program runs in the environment that it has in a call.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mcp_types import DiscoverResult, InitializeResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from pallas_gateway import __version__, child_processes
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from pallas_gateway.child_processes import ChildProcess
    from pallas_gateway.runtime.protocols import StdioProgram
    from pallas_gateway.tasks import TaskOwner

LONGEST_LINE = 4 * 2**20  # bytes of one message; a server's instructions may be long
ID = 1
MODERN = "2026-07-28"
_CLIENT = {"name": "pallas-gateway-health", "version": __version__}
INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": ID,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT},
}
DISCOVER: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": ID,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": _CLIENT,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}


_HANDSHAKES: dict[str, tuple[type[BaseModel], str, frozenset[str]]] = {
    "initialize": (InitializeResult, "protocolVersion", frozenset(HANDSHAKE_PROTOCOL_VERSIONS)),
    "server/discover": (DiscoverResult, "supportedVersions", frozenset(MODERN_PROTOCOL_VERSIONS)),
}
"""The result of each handshake, and its member with the versions."""


async def ask_program(
    program: StdioProgram | None, tasks: TaskOwner, leave_seconds: float, stderr: int | None = None
) -> tuple[str | None, str | None]:
    """Return the error or None, and the era that answered; one of `tasks` ends the program.

    Its stderr goes to the file descriptor `stderr`, or to the configured file.
    """
    if program is None:
        return "no command is configured", None
    try:
        process = await child_processes.start(
            program.command,
            program.arguments,
            environ=program.environ,
            directory=program.directory,
            longest_line=LONGEST_LINE,
            stderr=program.processes.stderr if stderr is None else stderr,
        )
    except (OSError, ValueError) as error:
        why = child_processes.why_not_started(program.command, program.directory, error, program.processes.stderr)
        return why, None
    try:
        return await _converse(process)
    finally:
        tasks.spawn(child_processes.end(process, leave_seconds), name=f"end {program.command}", report=True)


async def _converse(process: ChildProcess) -> tuple[str | None, str | None]:
    for request, era in ((INITIALIZE, "initialize"), (DISCOVER, MODERN)):
        try:
            answer = await _exchange(process, request)
        except ValueError:  # a line longer than any message
            break
        if answer is None:
            return f"its process ended with code {await process.wait()}", None
        if "result" in answer:
            return why_unusable(request["method"], answer["result"]), era
    return "not an MCP answer", None


async def _exchange(process: ChildProcess, request: dict[str, Any]) -> dict[str, Any] | None:
    """The answer to `request`, None if the program closed its pipes first; other lines are ignored."""
    with suppress(ConnectionError):  # the program has ended; its output is still read
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
    while line := await process.stdout.readline():
        await asyncio.sleep(0)  # lines that have arrived already are read without a pause
        answer = message(line)
        if answer.get("id") == ID and ("result" in answer or "error" in answer):
            return answer
    return None


def why_unusable(method: str, result: object) -> str | None:
    """Return why no call can use a server with this handshake; None if it can."""
    model, key, known = _HANDSHAKES[method]
    try:
        model.model_validate(result, by_name=False)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        return f"its handshake cannot be used: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    versions = result[key] if isinstance(result, dict) else ()
    if known.isdisjoint([versions] if isinstance(versions, str) else versions):
        return f"its handshake cannot be used: {key} is {quoted(str(versions))}"
    return None


def message(body: bytes | str) -> dict[str, Any]:
    """A JSON-RPC message, {} if the body is not a JSON object."""
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):  # the latter: thousands of brackets
        return {}
    return decoded if isinstance(decoded, dict) else {}
