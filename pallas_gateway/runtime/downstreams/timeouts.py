"""Time-outs of requests to downstreams, and of agents used as tools: asking the caller does not count.

A downstream of the initialize era asks while its tool call is under way, so without this a question that stays open for
longer than `read_timeout_seconds`, or than HTTP may be silent (`http_read_timeout_seconds`), would fail the tool call.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from fast_agent.mcp import client_gateway
from mcp.shared import _request_clock, jsonrpc_dispatcher

from pallas_gateway.calls.pauses import PausableDeadline
from pallas_gateway.runtime.compat.requirements import check_reads
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Mapping

    import httpx2

    from pallas_gateway.runtime.compat.requirements import ReliedOn

RELIED_ON: ReliedOn = (
    (jsonrpc_dispatcher, "request_clock", ("timeout",)),
    *((_request_clock.RequestClock, name, ("self",)) for name in ("pause", "resume")),
    (client_gateway, "_http_diagnostic_hooks", ("server_name", "hooks")),
    (client_gateway, "sse_client", ("url", "headers", "sse_read_timeout", "auth")),
)


def prepare() -> None:
    """Pause the deadlines of requests while a question is open, and allow HTTP to be silent for as long."""
    _pause_request_clocks()
    _lengthen_silences()


async def allow_silence(request: httpx2.Request) -> None:
    """Lengthen the read time-out of an HTTP request by the time for which a question of its call can be open.

    As the request hook of an HTTP client: the time-out of a request that waits cannot be changed any more.
    """
    seconds: Mapping[str, float | None] = request.extensions.get("timeout", {})
    if (read := seconds.get("read")) is not None:
        longest = read + current_scope.get().questions.longest_wait
        request.extensions = {**request.extensions, "timeout": {**seconds, "read": longest}}


def pause_child_timeouts() -> None:
    """Pause `child_timeout_sec` of agents that use others as tools; to be called once such agents may have been loaded.

    Raises:
        PlatformError: fast-agent measures this time in another way.
    """
    module: Any = sys.modules.get("fast_agent.agents.workflow.agents_as_tools_agent")
    if module is not None and module.asyncio is asyncio:
        check_reads([(module.AgentsAsToolsAgent, "_run_child_tool_clone", "wait_for")])
        module.asyncio = _PausableAsyncio()


class _PausableAsyncio:
    """The module `asyncio`, with deadlines that pause while the caller is asked."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def wait_for[T](self, awaitable: Awaitable[T], timeout: float) -> T:  # noqa: ASYNC109  as in asyncio
        async with asyncio.timeout(timeout) as deadline:
            with current_scope.get().questions.pauses.including(PausableDeadline(deadline)):
                return await awaitable


def _pause_request_clocks() -> None:
    """Pause the SDK's `read_timeout_seconds`, as the SDK itself does while a person logs in."""
    dispatcher: Any = jsonrpc_dispatcher  # it does not export the name
    original = dispatcher.request_clock

    @contextmanager
    def request_clock(timeout: float | None) -> Iterator[_request_clock.RequestClock]:
        with original(timeout) as clock, current_scope.get().questions.pauses.including(clock):
            yield clock

    dispatcher.request_clock = wraps(original)(request_clock)


def _lengthen_silences() -> None:
    """Add `allow_silence` to fast-agent's HTTP clients, and its time to the one stream of an `sse` connection."""
    clients: Any = client_gateway  # it does not export the second name
    hooks_of, sse_client = clients._http_diagnostic_hooks, clients.sse_client

    @wraps(hooks_of)
    def http_diagnostic_hooks(*args: Any, **options: Any) -> dict[str, list[Any]]:
        hooks = hooks_of(*args, **options) or {}
        return {**hooks, "request": [*hooks.get("request", []), allow_silence]}

    @wraps(sse_client)
    def patient_sse_client(*args: Any, sse_read_timeout: float, **options: Any) -> Any:
        longest = sse_read_timeout + current_scope.get().questions.longest_wait
        return sse_client(*args, sse_read_timeout=longest, **options)

    clients._http_diagnostic_hooks, clients.sse_client = http_diagnostic_hooks, patient_sse_client
