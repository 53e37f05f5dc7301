"""Measures an agent's downstream operations for the metrics: server, kind, outcome and duration."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
_LONGEST_REPORT = 300
"""Length of the beginning of a result in which servers describe an error."""


def timed(execute: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Return `MCPAggregator._execute_on_server` that reports to the `operations` of the call."""

    async def execute_on_server(self: Any, server_name: str, operation_type: str, *more: Any, **options: Any) -> Any:
        operations = current_scope.get().operations
        if operations is None:
            return await execute(self, server_name, operation_type, *more, **options)
        failures: list[str] = []
        make_result = options.get("error_factory")

        def failed(message: str) -> Any:  # results do not show that they report a failure
            failures.append(message)
            return make_result(message) if make_result else None

        if make_result is not None:
            options["error_factory"] = failed
        began, ok, result = monotonic(), False, None
        try:
            result = await execute(self, server_name, operation_type, *more, **options)
            ok = not failures and not getattr(result, "is_error", False)
            return result
        finally:
            if (kind := _KINDS.get(operation_type)) is not None:
                server = server_name if server_name in operations.servers else OTHER_SERVER
                operations.on_operation(server, kind, ok=ok, seconds=monotonic() - began)
            if failures or getattr(result, "is_error", False):
                operations.on_trouble(server_name, is_outdated=bool(failures) or contradicts_listing(result))

    return execute_on_server


def reporting_changes(refresh: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Return a method of `MCPAggregator` that handles a notification that a server has changed, and reports that.

    Notifications during a refresh cause one more. In a call a refresh ends after some seconds: it holds the lock that
    the end of the call requires.
    """

    async def handle(self: Any, server_name: str, *more: Any) -> None:
        has_changed: dict[str, bool] = vars(self).setdefault("_pallas_has_changed", {})
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
                        await refresh(self, server_name, *more)
        finally:
            del has_changed[server_name]

    return handle


def contradicts_listing(result: Any) -> bool:
    """Return True if a tool's result reports an unknown tool or invalid arguments, in the words of common servers.

    A tool that happens to use such words costs one more listing.
    """
    if not getattr(result, "is_error", False):
        return False
    return any(_OUTDATED.search((getattr(block, "text", None) or "")[:_LONGEST_REPORT]) for block in result.content[:1])
