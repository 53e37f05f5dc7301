"""Deadlines of fast-agent and the MCP SDK that pause while the caller is asked."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.asking.pauses import PausableDeadline
from pallas_gateway.changes.change import Name
from pallas_gateway.changes.names import incompatible, misfit, replace
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from mcp.shared._request_clock import RequestClock

_CHILDREN = "fast_agent.agents.workflow.agents_as_tools_agent"
CHILD_CLOCK = Name(f"{_CHILDREN}:asyncio")
"""Its `wait_for` measures the time of an agent that is used as a tool."""
_CHILD_TIMEOUTS = Name(f"{_CHILDREN}:AgentsAsToolsAgent._run_child_tool_clone", reads=("wait_for",))


def request_clock(original: Callable[[float | None], Any], _: Any) -> Callable[..., Any]:
    """Pause the SDK's `read_timeout_seconds`, as the SDK itself does while a person logs in."""

    @wraps(original)
    @contextmanager
    def request_clock(timeout: float | None) -> Iterator[RequestClock]:
        with original(timeout) as clock, current_scope.get().questions.pauses.including(clock):
            yield clock

    return request_clock


def pause_child_timeouts() -> None:
    """Pause `child_timeout_sec` of agents that use others as tools; to be called once such agents may have been loaded.

    Raises:
        PlatformError: fast-agent measures this time in another way.
    """
    module = sys.modules.get(_CHILDREN)
    if module is not None and getattr(module, "asyncio", None) is asyncio:
        if (why := misfit((_CHILD_TIMEOUTS,))) is not None:
            raise incompatible("fast-agent-mcp", why)
        replace(module, CHILD_CLOCK, lambda _original, _holder: _PausableAsyncio())


class _PausableAsyncio:
    """The module `asyncio`, with deadlines that pause while the caller is asked."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def wait_for[T](self, awaitable: Awaitable[T], timeout: float) -> T:  # noqa: ASYNC109  as in asyncio
        async with asyncio.timeout(timeout) as deadline:
            with current_scope.get().questions.pauses.including(PausableDeadline(deadline)):
                return await awaitable
