"""What an agent asks of its downstreams, as the metrics know it: which server, which kind, how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pallas_gateway.runtime.ports import OnOperation

# fast-agent's operation types by the words of the metrics. Lists are not told of: every call makes them to connect.
_KINDS = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
    "resources/directory/read": "resource",
}
OTHER_SERVER = "other"
"""A server that no agent is configured with: a model may attach one (`@fast.smart`) under any name."""


def reporting(on_operation: OnOperation, servers: Collection[str]) -> Callable[[str, str, bool, float], None]:
    """What `platform.telling_of_operations` calls: tells `on_operation`, with names of `servers` only."""

    def report(server: str, operation_type: str, ok: bool, seconds: float) -> None:
        if (kind := _KINDS.get(operation_type)) is not None:
            on_operation(server if server in servers else OTHER_SERVER, kind, ok=ok, seconds=seconds)

    return report
