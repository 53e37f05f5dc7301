"""What an agent asks of its downstreams, as the metrics know it: which server, which kind, how it ended, how long."""

from __future__ import annotations

import re
from time import monotonic
from typing import TYPE_CHECKING, Any

from pallas_gateway.runtime.call_scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# fast-agent's operation types by the words of the metrics. Lists are not told of: every call makes them to connect.
_KINDS = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
    "resources/directory/read": "resource",
}
OTHER_SERVER = "other"
"""A server that no agent is configured with: a model may attach one (`@fast.smart`) under any name."""


_OUTDATED = re.compile(
    r"(?:unknown|unsupported|no such) tool|tool\b.{0,200}\b(?:not found|does not exist)"
    r"|invalid (?:arguments|params)|validation error",
    re.IGNORECASE | re.DOTALL,
)
_LONGEST_REPORT = 300
"""A server says at the beginning of a result what is wrong with the call."""


def timed(execute: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """`MCPAggregator._execute_on_server`, reporting to the `operations` of the call."""

    async def execute_on_server(self: Any, server_name: str, operation_type: str, *more: Any, **options: Any) -> Any:
        operations = current_scope.get().operations
        if operations is None:
            return await execute(self, server_name, operation_type, *more, **options)
        failures: list[str] = []
        make_result = options.get("error_factory")

        def failed(message: str) -> Any:  # its results do not show that they stand for a failure
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
            if failures or contradicts_listing(result):
                operations.on_trouble(server_name)

    return execute_on_server


def contradicts_listing(result: Any) -> bool:
    """Return true if a tool's result reports an unknown tool or invalid arguments, in the words of the common servers.

    A tool that uses such words of its own accord costs one listing more.
    """
    if not getattr(result, "is_error", False):
        return False
    return any(_OUTDATED.search((getattr(block, "text", None) or "")[:_LONGEST_REPORT]) for block in result.content[:1])
