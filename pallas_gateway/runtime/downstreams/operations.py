"""An agent's downstream operations, for the metrics and the log: server, kind, outcome and duration."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from fast_agent.core.exceptions import walk_exception_chain
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT

from pallas_gateway.runtime.downstreams.credentials import status_of
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from fast_agent.mcp.mcp_aggregator import MCPAggregator

    from pallas_gateway.runtime.scope import Operations

_trace_log = logging.getLogger("pallas.forward.trace")

# fast-agent's operation types, and their names in the metrics. Listings are not counted: they belong to connecting.
_KINDS = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
    "resources/directory/read": "resource",
}
OTHER_SERVER = "other"
"""The name for servers that are not configured: a model may attach one (`@fast.smart`) under any name."""


_OUTDATED = re.compile(
    r"(?:unknown|unsupported|no such) tool|tool\b.{0,200}\b(?:not found|does not exist)"
    r"|invalid (?:arguments|params)|validation error",
    re.IGNORECASE | re.DOTALL,
)
_KINDS_OF_CODES = {CONNECTION_CLOSED: "connection", REQUEST_TIMEOUT: "timeout", PARSE_ERROR: "unreadable"}
_LONGEST_REPORT = 300
"""Length of the beginning of a result in which servers describe an error."""


@dataclass
class DownstreamOperation:
    """One operation of a downstream, for the metrics and the log."""

    server: str
    type: str
    name: str
    result: Any = None
    _failures: list[str] = field(default_factory=list)
    _has_ended: bool = False

    def noting_failures(self, make_result: Callable[[str], Any]) -> Callable[[str], Any]:
        """Return `make_result`, which notes each failure: for most operations fast-agent drops the exception."""

        def noted(message: str) -> Any:
            self._log_failure()
            if (call := current_scope.get().peer_call) is not None:
                current_scope.get().tool_failures[call.tool_call_id] = kind_of(sys.exception())
            self._failures.append(message)
            return make_result(message)

        return noted

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Report the operation of the block to the `operations` of the call, and log its failure."""
        operations, began = current_scope.get().operations, monotonic()
        try:
            yield
            self._has_ended = True
        except Exception:
            self._log_failure()
            raise
        finally:
            if operations is not None:
                self._report(operations, monotonic() - began)

    def _log_failure(self) -> None:
        # Listings are requested at each connection, and fail each time if a server is down or has no prompts.
        level = logging.DEBUG if self.type.endswith("/list") else logging.WARNING
        extra = {"server": self.server, "operation": self.type, "subject": self.name}
        _trace_log.log(level, "downstream operation failed", extra=extra, exc_info=True)

    def _report(self, operations: Operations, seconds: float) -> None:
        has_failed = bool(self._failures) or getattr(self.result, "is_error", False)
        if (kind := _KINDS.get(self.type)) is not None:
            server = self.server if self.server in operations.servers else OTHER_SERVER
            operations.on_operation(server, kind, ok=self._has_ended and not has_failed, seconds=seconds)
        if has_failed:
            is_outdated = bool(self._failures) or contradicts_listing(self.result)
            operations.on_trouble(self.server, is_outdated=is_outdated)


def kind_of(error: BaseException | None) -> str:
    """The kind of error of a tool call that has failed, as one word for the log."""
    status = status_of(error) if error is not None else None
    if status is not None:
        return f"http_{status}"
    of_protocol = (one for one in walk_exception_chain(error) if isinstance(one, MCPError)) if error is not None else ()
    code = next((one.error.code for one in of_protocol), None)
    return "connection" if code is None else _KINDS_OF_CODES.get(code, "rpc_error")


async def refresh_and_report(
    aggregator: MCPAggregator, server_name: str, refresh: Callable[[], Awaitable[object]]
) -> None:
    """Refresh the tools of a server that has changed, and report that to the `operations` of the call.

    Notifications during a refresh cause one more. In a call a refresh ends after some seconds: it holds the lock that
    the end of the call requires.
    """
    has_changed: dict[str, bool] = vars(aggregator).setdefault("_pallas_has_changed", {})
    is_refreshing = server_name in has_changed
    has_changed[server_name] = True
    if is_refreshing:
        return
    operations = current_scope.get().operations
    try:
        while has_changed[server_name]:
            has_changed[server_name] = False
            if operations is not None:
                operations.on_trouble(server_name, is_outdated=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(operations.refresh_seconds if operations is not None else None):
                    await refresh()
    finally:
        del has_changed[server_name]


def contradicts_listing(result: Any) -> bool:
    """Return True if a tool's result reports an unknown tool or invalid arguments, in the words of common servers.

    A tool that happens to use such words costs one more listing.
    """
    if not getattr(result, "is_error", False):
        return False
    return any(_OUTDATED.search((getattr(block, "text", None) or "")[:_LONGEST_REPORT]) for block in result.content[:1])
