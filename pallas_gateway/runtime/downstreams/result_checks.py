"""Checks of tool results by the schemas of their tools: a result that does not fit is read all the same, with a line.

The tool has run. A model that read of a failure would run it again.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from jsonschema.exceptions import ValidationError

from pallas_gateway.calls.tool_results import RAN, add_line
from pallas_gateway.runtime.failures import one_line
from pallas_gateway.runtime.scope import current_scope
from pallas_gateway.telemetry.redaction import shortened

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.client.session import ClientSession
    from mcp_types import CallToolResult

MISFIT = f"{RAN}its result does not fit the schema that it declares."
LIST_SECONDS = 60.0
"""Shortest time between two listings of one server that results which do not fit are a reason for."""
WARN_SECONDS = 3600.0
_LONGEST = 300
_MOST_TOOLS = 1000
_BROKEN = "Invalid schema"
"""Beginning of the SDK's message about a schema by which no result can be checked."""
_log = logging.getLogger("pallas.runtime")


class Misfits:
    """The results of one agent's tools that did not fit: when each was a reason for a listing, and for a warning."""

    def __init__(self, agent: str, clock: Callable[[], float] = monotonic) -> None:
        self._agent = agent
        self._clock = clock
        self._at: dict[tuple[str, str], float] = {}

    def may_list(self, server: str) -> bool:
        """Return True once in `LIST_SECONDS` for each server."""
        return self._is_due((server, ""), LIST_SECONDS)

    def warn(self, server: str, tool: str, why: str) -> None:
        """Log a tool whose results do not fit, once in `WARN_SECONDS`."""
        if self._is_due((server, tool), WARN_SECONDS):
            extra = {"agent": self._agent, "server": server, "tool": tool, "error": why}
            _log.warning("tool result does not fit its schema", extra=extra)

    def _is_due(self, what: tuple[str, str], seconds: float) -> bool:
        now = self._clock()
        if now - self._at.get(what, float("-inf")) < seconds:
            return False
        if len(self._at) > _MOST_TOOLS:
            self._at.clear()
        self._at[what] = now
        return True


def read_misfits(session: ClientSession, on_outdated: Callable[[], object] | None = None) -> None:
    """Have `session` return results that do not fit the schemas of their tools.

    With `on_outdated`, the schemas of `session` are those of a cached listing. After a result that does not fit, the
    tools are listed again; `on_outdated` is called if it fits the new schema.
    """
    check = session.validate_tool_result

    async def validate_tool_result(name: str, result: CallToolResult) -> None:
        if (why := await _why_not(check, name, result)) is None:
            return
        operations, call = current_scope.get().operations, current_scope.get().peer_call
        misfits, server = (
            operations.misfits if operations is not None else None,
            call.server if call is not None else "",
        )
        if on_outdated is not None and (misfits is None or misfits.may_list(server)) and await _has_listed(session):
            why = await _why_not(check, name, result)
            if why is None:
                on_outdated()
                return
        if misfits is not None:
            misfits.warn(server, name, why)
        has_line = any(getattr(block, "text", "").startswith(RAN) for block in result.content[-1:])
        if not has_line and not why.startswith(_BROKEN):
            add_line(result, MISFIT)

    session.validate_tool_result = validate_tool_result  # type: ignore[method-assign]


async def _has_listed(session: ClientSession) -> bool:
    """List the tools of the session again; return False if that fails."""
    try:
        await session.list_tools()
    except Exception as error:  # noqa: BLE001  the result is there, whatever becomes of the listing
        _log.debug("tools not listed again", extra={"error": one_line(error)})
        return False
    return True


async def _why_not(check: Callable[..., Any], name: str, result: CallToolResult) -> str | None:
    """Return why a result does not fit, without its values; None if it fits, or the check itself cannot be made."""
    try:
        await check(name, result)
    except RuntimeError as error:
        if isinstance(wrong := error.__cause__, ValidationError):
            return f"{wrong.json_path}: {wrong.validator}"
        return shortened(str(error).partition("\n")[0], _LONGEST)
    except Exception as error:  # noqa: BLE001  of a listing that failed, or a pattern that cannot be compiled
        _log.debug("tool result not checked", extra={"tool": name, "error": one_line(error)})
    return None
