"""The load generator: clients that call one tool over MCP's streamable HTTP, each its next call when one is answered.

HTTP is spoken by hand, with request bytes made beforehand, because an HTTP client library costs more per call than some
of what is measured. Every answer is looked at: one that is not the expected one fails the run.
"""

from __future__ import annotations

import asyncio
import json
import resource
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.processes import HOST
from benchmarks.wire import END_OF_HEAD, Connection, Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from benchmarks.contenders import Endpoint

type Era = Literal["initialize", "modern"]
INITIALIZE_VERSION = "2025-06-18"
MODERN_VERSION = "2026-07-28"
CALL_SECONDS = 120.0
_CLIENT = {"name": "benchmarks", "version": "1"}
_PREFIX = "io.modelcontextprotocol/"
_ENVELOPE = {
    f"{_PREFIX}protocolVersion": MODERN_VERSION,
    f"{_PREFIX}clientInfo": _CLIENT,
    f"{_PREFIX}clientCapabilities": {},
}


class WrongAnswerError(Exception):
    """A server answered something else than it should have; quotes it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One call that was answered rightly: when, by `perf_counter`, and what came back."""

    began: float
    ended: float
    bytes: int
    notifications: int

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def part_within(self, begin: float, end: float) -> float:
        """Which part of it lies between two times, 0 to 1."""
        return max(0.0, min(self.ended, end) - max(self.began, begin)) / self.seconds


class Client:
    """One MCP client on one connection, and on another when the server has had enough of that."""

    def __init__(
        self,
        endpoint: Endpoint,
        connection: Connection,
        era: Era,
        *,
        with_progress: bool,
        can_be_asked: bool,
        live: bool,
    ) -> None:
        self.largest_state = 0
        """Bytes of the largest `requestState` so far."""
        self._can_be_asked = can_be_asked
        self._capabilities: dict[str, Any] = {"elicitation": {}} if can_be_asked else {}
        self._endpoint = endpoint
        self._connection = connection
        self._era = era
        self._session: str | None = None
        self._expected = json.dumps(endpoint.expected)[1:-1].encode()
        self._ids = 0
        meta: dict[str, Any] = dict(_ENVELOPE) if era == "modern" else {}
        if with_progress:
            meta["progressToken"] = "progress"
            meta[f"{_PREFIX}logLevel"] = "info"
        if can_be_asked:
            meta[f"{_PREFIX}clientCapabilities"] = self._capabilities
        if live:
            meta["pallas/stream"] = "delta"
        self._meta = {"_meta": meta} if meta else {}
        self._call = {"name": endpoint.tool, "arguments": endpoint.arguments, **self._meta}
        self._params = json.dumps(self._call).encode()

    async def shake_hands(self) -> None:
        """What the era wants before the first call."""
        if self._era == "modern":
            return
        params = {
            "protocolVersion": INITIALIZE_VERSION,
            "capabilities": self._capabilities,
            "clientInfo": _CLIENT,
        }
        response = await self._connection.exchange(self._request("initialize", json.dumps(params).encode(), b"0"))
        if response.status != 200:
            raise WrongAnswerError(response.body.decode(errors="replace"))
        self._session = response.header("mcp-session-id")
        await self._connection.exchange(self._request("notifications/initialized", b"{}", None))

    async def call(self) -> Answered:
        """One call.

        Raises:
            WrongAnswerError: it was not answered as it should.
        """
        if self._connection.is_last:  # Hypercorn's thousandth; what a new one costs is not the call's
            await self._reconnect()
        began = perf_counter()
        response = await self._exchange("tools/call", self._params)
        while self._can_be_asked and (asked := _questions(response)) is not None:
            response = await self._exchange("tools/call", self._answered(asked))
        ended = perf_counter()
        if self._expected not in response.body or b'"isError":true' in response.body.replace(b" ", b""):
            raise WrongAnswerError(response.head.decode() + response.body.decode(errors="replace")[:2000])
        size = len(response.head) + len(response.body)
        return Answered(began, ended, size, response.body.count(b'"method":'))

    async def leave_asked(self) -> None:
        """Make a call and leave its questions without an answer; in the initialize era its response stays open.

        Raises:
            WrongAnswerError: it asked none.
        """
        if self._era == "initialize":
            await self._connection.exchange(self._request("tools/call", self._params, b"1"), b'"elicitation/create"')
            return
        response = await self._exchange("tools/call", self._params)
        if _questions(response) is None:
            raise WrongAnswerError(response.body.decode(errors="replace")[:2000])

    async def list_tools(self) -> None:
        """List the tools: a request that costs little."""
        await self._exchange("tools/list", json.dumps(self._meta).encode())

    @property
    def call_bytes(self) -> bytes:
        """The request of a call."""
        return self._request("tools/call", self._params, b"1")

    def send_only(self) -> None:
        """Send a call and hang up."""
        self._connection._transport.write(self.call_bytes)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    async def _exchange(self, method: str, params: bytes) -> Response:
        if self._connection.is_last:
            await self._reconnect()
        self._ids += 1
        return await self._connection.exchange(self._request(method, params, str(self._ids).encode()))

    async def _reconnect(self) -> None:
        self.close()
        self._connection = await _connect(self._endpoint)

    def _answered(self, asked: dict[str, Any]) -> bytes:
        """The parameters that repeat the call, with an answer to each question."""
        state = asked["requestState"]
        self.largest_state = max(self.largest_state, len(state))
        answer = {"action": "accept", "content": {"topic": "bees"}}
        responses = dict.fromkeys(asked["inputRequests"], answer)
        return json.dumps({**self._call, "requestState": state, "inputResponses": responses}).encode()

    def _request(self, method: str, params: bytes, request_id: bytes | None) -> bytes:
        identity = b"" if request_id is None else b'"id":' + request_id + b","
        body = b'{"jsonrpc":"2.0",' + identity + b'"method":"' + method.encode() + b'","params":' + params + b"}"
        lines = [
            f"POST {self._endpoint.path} HTTP/1.1",
            f"Host: {HOST}:{self._endpoint.process.port}",
            "Accept: application/json, text/event-stream",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *self._era_headers(method),
            *([f"Authorization: Bearer {self._endpoint.bearer}"] if self._endpoint.bearer else []),
        ]
        return "\r\n".join(lines).encode() + END_OF_HEAD + body

    def _era_headers(self, method: str) -> list[str]:
        if self._era == "modern":
            return [
                f"MCP-Protocol-Version: {MODERN_VERSION}",
                f"Mcp-Method: {method}",
                *([f"Mcp-Name: {self._endpoint.tool}"] if method == "tools/call" else []),
            ]
        if method == "initialize":
            return []
        session = [f"Mcp-Session-Id: {self._session}"] if self._session else []
        return [f"MCP-Protocol-Version: {INITIALIZE_VERSION}", *session]


def _questions(response: Response) -> dict[str, Any] | None:
    """The result of a call that asks its caller; None for any other response."""
    if b'"input_required"' not in response.body:
        return None
    _, _, event = response.body.rpartition(b"data:")  # of a response that is no stream, all of it
    result: dict[str, Any] = json.loads(event)["result"]
    return result


@asynccontextmanager
async def client(
    endpoint: Endpoint,
    *,
    era: Era = "initialize",
    with_progress: bool = False,
    can_be_asked: bool = False,
    live: bool = False,
) -> AsyncIterator[Client]:
    """A client that has shaken hands; in 2026-07-28 one that `can_be_asked` answers every form. `live` gets deltas."""
    connection = await _connect(endpoint)
    opened = Client(endpoint, connection, era, with_progress=with_progress, can_be_asked=can_be_asked, live=live)
    try:
        async with asyncio.timeout(CALL_SECONDS):
            await opened.shake_hands()
        yield opened
    finally:
        opened.close()


async def _connect(endpoint: Endpoint) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, HOST, endpoint.process.port)
    return connection


@dataclass(frozen=True, slots=True)
class Load:
    """How a server is asked: by so many clients, for so long."""

    clients: int = 16
    seconds: float = 4.0
    warm_up_seconds: float = 1.0
    era: Era = "initialize"
    with_progress: bool = False
    can_be_asked: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """What one round came to. CPU is milliseconds per call, of the server's processes and of the generator."""

    calls: int
    calls_per_second: float
    p50_ms: float
    p95_ms: float
    cpu_ms: float
    generator_cpu_ms: float
    bytes_per_call: float
    notifications_per_call: float


async def measure(endpoint: Endpoint, load: Load) -> Sample:
    """Ask one server for `load.seconds`, after warming up.

    A call counts for the part of it that lies in that time. Servers tend to answer clients in bursts, and whole calls
    would be counted by where the bursts happen to fall.
    """
    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {"with_progress": load.with_progress, "can_be_asked": load.can_be_asked}
        clients = [
            await stack.enter_async_context(client(endpoint, era=load.era, **options)) for _ in range(load.clients)
        ]
        answered: list[Answered] = []
        ends = perf_counter() + load.warm_up_seconds + load.seconds

        async def ask(one: Client) -> None:
            while perf_counter() < ends:
                async with asyncio.timeout(CALL_SECONDS):
                    answered.append(await one.call())

        async with asyncio.TaskGroup() as asking:
            for one in clients:
                asking.create_task(ask(one))
            await asyncio.sleep(load.warm_up_seconds)
            began, cpu, own = perf_counter(), endpoint.process.cpu_seconds, _own_cpu_seconds()
            await asyncio.sleep(load.seconds)
            ended, cpu, own = perf_counter(), endpoint.process.cpu_seconds - cpu, _own_cpu_seconds() - own
    return _sample(answered, (began, ended), cpu, own)


async def answers(endpoint: Endpoint, calls: int, *, era: Era = "initialize") -> list[Answered]:
    """So many calls by one client, one after the other."""
    async with client(endpoint, era=era) as one:
        return [await one.call() for _ in range(calls)]


def _sample(answered: Sequence[Answered], window: tuple[float, float], cpu: float, own: float) -> Sample:
    parts = [(one, part) for one in answered if (part := one.part_within(*window))]
    calls = sum(part for _, part in parts)
    ordered = sorted(one.seconds for one, _ in parts)
    return Sample(
        calls=len(parts),
        calls_per_second=calls / (window[1] - window[0]),
        p50_ms=1000 * ordered[len(ordered) // 2],
        p95_ms=1000 * ordered[int(len(ordered) * 0.95)],
        cpu_ms=1000 * cpu / calls,
        generator_cpu_ms=1000 * own / calls,
        bytes_per_call=sum(one.bytes for one, _ in parts) / len(parts),
        notifications_per_call=sum(one.notifications for one, _ in parts) / len(parts),
    )


def _own_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
