"""Checks of tool results by the schemas of their tools: a result that does not fit is read all the same, with a line.

The tool has run. A model that read of a failure would run it again.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from jsonschema.exceptions import ValidationError
from pydantic_core import to_json

from pallas_gateway.calls.tool_results import RAN, add_line
from pallas_gateway.runtime.downstreams.listings.reading import PAGES_SECONDS, listing_within
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
_MOST_TIMES = 1000
_LONGEST = 300
_DEAR = (b'"pattern"', b'"patternProperties"', b'"uniqueItems"')
_MOST_REFERENCES = 16
_LARGEST = 64 * 1024
"""Bytes of the largest structured content that is checked."""
_BROKEN = "Invalid schema"
"""Beginning of the SDK's message about a schema by which no result can be checked."""
_log = logging.getLogger("pallas.runtime")


def read_misfits(session: ClientSession, on_outdated: Callable[[], object] | None = None) -> None:
    """Have `session` return results that do not fit the schemas of their tools.

    With `on_outdated`, the schemas of `session` are those of a cached listing. After a result that does not fit, the
    tools are listed again; `on_outdated` is called if it fits the new schema.
    """
    check = session.validate_tool_result

    async def validate_tool_result(name: str, result: CallToolResult) -> None:
        if (why := await _why_not(session, check, name, result)) is None:
            return
        call = current_scope.get().peer_call
        server = call.server if call is not None else ""
        if on_outdated is not None and _is_due((server, ""), LIST_SECONDS):
            try:
                async with listing_within(PAGES_SECONDS):
                    await session.list_tools()
            except Exception as error:  # noqa: BLE001  the result is there, whatever becomes of the listing
                _log.debug("tools not listed again", extra={"error": one_line(error)})
            why = await _why_not(session, check, name, result)
            if why is None:
                on_outdated()
                return
        if _is_due((server, name), WARN_SECONDS):
            extra = {"server": server, "tool": name, "error": why}
            # At most once an hour for each tool.
            _log.warning("tool result does not fit its schema", extra=extra)
        has_line = any(getattr(block, "text", "").startswith(RAN) for block in result.content[-1:])
        if not has_line and not why.startswith(_BROKEN):
            add_line(result, MISFIT)

    session.validate_tool_result = validate_tool_result  # type: ignore[method-assign]


def is_cheap(schema: object, structured: object) -> bool:
    """Return True if a check cannot hold the event loop: it runs there at once, and nothing ends it.

    Patterns and comparisons of all items with each other take a time of their own, and references double it at each
    level.
    """
    text = to_json(schema)
    return (
        not any(keyword in text for keyword in _DEAR)
        and text.count(b'"$ref"') <= _MOST_REFERENCES
        and len(to_json(structured)) <= _LARGEST
    )


def _is_due(what: tuple[str, str], seconds: float) -> bool:
    """Return True once in `seconds` for each agent."""
    if (operations := current_scope.get().operations) is None:
        return True
    times, now = operations.misfits, monotonic()
    if now - times.get(what, float("-inf")) < seconds:
        return False
    if len(times) > _MOST_TIMES:
        times.clear()
    times[what] = now
    return True


async def _why_not(session: ClientSession, check: Callable[..., Any], name: str, result: CallToolResult) -> str | None:
    """Return why a result does not fit, without its values; None if it fits, or the check itself cannot be made."""
    try:
        async with listing_within(PAGES_SECONDS):
            if name not in session._tool_output_schemas:
                await session.list_tools()
        schema = session._tool_output_schemas.get(name)
        if schema is not None and is_cheap(schema, result.structured_content):
            await check(name, result)
    except RuntimeError as error:
        if isinstance(wrong := error.__cause__, ValidationError):
            return f"{wrong.json_path}: {wrong.validator}"
        return shortened(str(error).partition("\n")[0], _LONGEST)
    except Exception as error:  # noqa: BLE001  of a listing that failed or hangs, or a pattern that cannot be compiled
        _log.debug("tool result not checked", extra={"tool": name, "error": one_line(error)})
    return None
