"""Reads a server's list of tools: all pages, and each tool by itself, in both eras and over all transports.

A tool that cannot be used costs the others nothing. The session keeps what was wrong in `pallas_faults`, and the
server's `ttlMs` in `pallas_ttl_seconds`; 0, which the SDK's servers send where none was set, is none.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp_types import ListToolsRequest, ListToolsResult, PaginatedRequestParams, Tool
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from pallas_gateway.changes.change import Fault
from pallas_gateway.errors import GatewayError
from pallas_gateway.runtime.downstreams.listings.schemas import schema_fault
from pallas_gateway.runtime.failures import one_line
from pallas_gateway.runtime.protocols import CANNOT_LIST
from pallas_gateway.tasks import give_way
from pallas_gateway.telemetry.redaction import quoted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from mcp.client.session import ClientSession

FAULTS = (
    Fault(
        title="fast-agent reads one page of a list of tools, and the SDK takes the page as a whole",
        text="""\
Symptom: of a server with 120 tools in pages of 50, the model has 50. Of a server with one tool whose schema does not
fit, it has none, and the error does not name the tool.

Repair: `ClientSession.list_tools` returns all pages as one, and leaves out single tools.
""",
        library="fast_agent",
        gone_when="`MCPAggregator` follows `nextCursor`, and the SDK leaves out the tools that do not fit",
        test="tests/e2e/test_imperfect_servers.py",
    ),
    Fault(
        title="fast-agent's names of tools are cut, not unique, and have any characters",
        text="""\
Symptom: of two tools with a long name, a call of the first runs the second; a provider refuses every turn of an agent
with a tool such as `straße`.

Repair: the model has names made by `calls/tool_names.py: name_at_model`. Filters use the real name.
""",
        library="fast_agent",
        gone_when="`create_namespaced_name` gives each tool a name of its own that providers accept",
        test="tests/e2e/test_imperfect_servers.py",
    ),
)
MOST_PAGES = 100
PAGES_SECONDS = 4.0
"""Time for the pages of a list that is read outside of `listing_within`."""
_ENVELOPE = ("resultType", "ttlMs", "cacheScope")
"""Fields that a page requires in some version, besides its tools. The other fields are checked once per page."""
_PART_SECONDS = 0.002
"""Time of checking tools after which other work of the event loop goes on."""
_SHARE = 0.8
"""The part of a listing's time after which the pages that were read are all."""


class ListingError(GatewayError):
    """A server that is reachable has no list that can be read."""

    reason = "no_listing"


@dataclass(slots=True)
class _Time:
    ends_at: float
    is_connected: bool = False


_time: ContextVar[_Time | None] = ContextVar("pallas_listing_time", default=None)


@asynccontextmanager
async def listing_within(seconds: float, cut_off: Callable[[], object] = lambda: None) -> AsyncIterator[None]:
    """Limit the time for connecting to a server and listing its tools.

    `cut_off` is called after this time, too: it ends connections whose end may hang.

    Raises:
        TimeoutError: the message says which of both took too long.
    """
    why = f"no answer within {seconds:g} s"
    time = _Time(asyncio.get_running_loop().time() + _SHARE * seconds)
    token = _time.set(time)
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            cutting = asyncio.get_running_loop().call_later(seconds, cut_off)  # after the limit, which is the reason
            try:
                yield
            finally:
                cutting.cancel()
    except Exception:
        if not limit.expired():
            raise
        raise TimeoutError(f"{CANNOT_LIST}{why}" if time.is_connected else why) from None  # what ends by it may raise
    finally:
        _time.reset(token)


async def read_tools(session: ClientSession, params: PaginatedRequestParams | None) -> ListToolsResult:
    """Return all tools of a server that can be used.

    Raises:
        MCPError: an error of the server.
        ValidationError: the first page is no list of tools.
    """
    now = asyncio.get_running_loop().time()
    if (time := _time.get()) is not None:
        time.is_connected = True
    ends_at = time.ends_at if time is not None and time.ends_at > now else now + PAGES_SECONDS
    reading = _Reading(session._negotiated_version or "2025-11-25")
    params = params or PaginatedRequestParams()
    cursor = await reading.add(await _page(session, params))
    try:
        async with asyncio.timeout_at(ends_at):
            while cursor is not None and reading.may_follow(cursor):
                cursor = await reading.add(await _page(session, params.model_copy(update={"cursor": cursor})))
    except TimeoutError:
        reading.end("has not come in time")
    except (MCPError, ValidationError) as error:
        reading.end(f"cannot be read: {one_line(error)}")
    result = session._absorb_tool_listing(reading.result(), complete=True)
    reading.note_missing(result)
    kept: Any = session
    kept.pallas_faults = tuple(reading.faults)
    kept.pallas_ttl_seconds = min(reading.ttls, default=0) / 1000 or None
    return result


async def _page(session: ClientSession, params: PaginatedRequestParams) -> dict[str, Any]:
    """One page as the server sent it: `send_request` would refuse it for one bad tool."""
    data = ListToolsRequest(params=params).model_dump(by_alias=True, mode="json", exclude_none=True)
    options: Any = {}
    session._stamp(data, options)
    if (seconds := session._session_read_timeout_seconds) is not None:
        options["timeout"] = seconds
    return await session._dispatcher.send_raw_request(data["method"], data.get("params"), options)


class _Reading:
    """The tools and faults of the pages so far."""

    def __init__(self, version: str) -> None:
        self.faults: list[str] = []
        self.ttls: list[int] = []
        self._version = version
        self._tools: dict[str, Tool] = {}
        self._cursors: set[str] = set()
        self._count = 0
        self._next_page = 1
        self._first: ListToolsResult | None = None

    async def add(self, page: dict[str, Any]) -> str | None:
        """Add a page; return the cursor of the next one.

        Raises:
            ValidationError: it is no page of tools.
        """
        tools = page.get("tools")
        rest = {**page, "tools": []} if isinstance(tools, list) else page
        self._check(rest)
        # Of an older era, fields of a later one mean nothing.
        known = rest if self._version in MODERN_PROTOCOL_VERSIONS else {"tools": []}
        whole = ListToolsResult.model_validate(known, by_name=False)
        if self._first is None:
            self._first = whole
        self.ttls += [whole.ttl_ms] if whole.ttl_ms > 0 else []
        envelope = {name: rest[name] for name in _ENVELOPE if name in rest}
        began = perf_counter()
        for raw in tools or ():
            await self._add(raw, envelope)
            if perf_counter() - began > _PART_SECONDS:
                await give_way(began)
                began = perf_counter()
        self._next_page += 1
        return page.get("nextCursor")

    def may_follow(self, cursor: str) -> bool:
        """Return False for a cursor that was followed before, and after `MOST_PAGES`."""
        if cursor in self._cursors:
            self.end("would be one of those before")
        elif len(self._cursors) + 1 >= MOST_PAGES:
            self.end("is not read")
        else:
            self._cursors.add(cursor)
            return True
        return False

    def end(self, why: str) -> None:
        """Note why the pages that were read are not all."""
        self.faults.insert(0, f"page {self._next_page} {why}; the list ends after {self._count} tools")

    def result(self) -> ListToolsResult:
        """The list in one page."""
        first = self._first or ListToolsResult(tools=[])
        return first.model_copy(update={"tools": [*self._tools.values()], "next_cursor": None})

    def note_missing(self, result: ListToolsResult) -> None:
        """Note the tools that the session has left out: those with headers that are not allowed."""
        kept = {tool.name for tool in result.tools}
        self.faults += [f"{quoted(name)}: its x-mcp-header is invalid" for name in self._tools if name not in kept]

    def _check(self, page: Mapping[str, Any]) -> None:
        with suppress(KeyError):  # a version without models
            validate_server_result("tools/list", self._version, page)

    async def _add(self, raw: Any, envelope: Mapping[str, Any]) -> None:
        index, self._count = self._count, self._count + 1
        try:
            self._check({**envelope, "tools": [raw]})
            tool = Tool.model_validate(raw, by_name=False)
            fault = await _fault_of(tool)
            if fault is None and self._tools.setdefault(tool.name, tool) != tool:
                fault = "another tool has this name"
        except ValidationError as error:
            fault = _first_fault(error)
        except ValueError as error:  # text that is no Unicode
            fault = one_line(error)
        if fault is not None:
            name = raw.get("name") if isinstance(raw, dict) else None
            self.faults.append(f"tools[{index}]{f' {quoted(name)}' if isinstance(name, str) else ''}: {fault}")


async def _fault_of(tool: Tool) -> str | None:
    if not tool.name:
        return "its name is empty"
    for place, schema in (("inputSchema", tool.input_schema), ("outputSchema", tool.output_schema)):
        if (fault := await schema_fault(place, schema)) is not None:
            return fault
    return None


def _first_fault(error: ValidationError) -> str:
    """The first fault of a tool: `inputSchema has no type`."""
    first = error.errors(include_input=False)[0]
    *parent, last = [str(part) for part in first["loc"] if part != "tools"][1:] or [""]
    if first["type"] == "missing":
        return f"{'.'.join(parent) or 'it'} has no {last}"
    place = ".".join((*parent, last))
    return f"{place}: {first['msg']}" if place else first["msg"]
