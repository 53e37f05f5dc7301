"""The listing of a downstream: what a call has to know of a server before it uses one of its tools."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp.client.session import ClientSession
from pydantic_core import to_json

from pallas_gateway.runtime.downstreams.result_checks import read_misfits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import httpx2
    from fast_agent.mcp.mcp_aggregator import NamespacedTool
    from mcp_types import CallToolResult, DiscoverResult

    from pallas_gateway.runtime.downstreams.programs.program_pool import ProgramPool

CONNECT_SECONDS = 5.0
"""Longest wait of a tool call for the handshake of the initialize era."""


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """The tools, instructions, skills and apps of one downstream."""

    tools: Sequence[NamespacedTool]
    instructions: str | None = None
    skills: Any = None
    apps: Any = None
    connect_seconds: float = CONNECT_SECONDS


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ServerListing(Listing):
    """The listing of an HTTP or stdio server.

    `discovered` is its `server/discover` result in the 2026-07-28 era; None in the initialize era, where each call
    makes a session. `http_client` sends the requests of all calls and keeps no data of them; a stdio server has a
    `program` instead. `on_outdated` is called in a call that finds that the listing is out of date. `ttl_seconds` is
    the server's `ttlMs`, if it has set one. `faults` are the tools that were left out, and why.
    """

    http_client: httpx2.AsyncClient | None
    program: ProgramPool | None = None
    on_outdated: Callable[[], object]
    discovered: DiscoverResult | None
    schemas: Mapping[str, Any]
    header_maps: Mapping[str, Any]
    ttl_seconds: float | None = None
    faults: tuple[str, ...] = ()
    _validators: dict[str, Any] = field(default_factory=dict)  # each compiled once, by the first call that needs it

    def valid_seconds(self, seconds: float) -> float:
        """Return the seconds for which the listing is valid: `seconds`, or fewer if the server says so by `ttlMs`."""
        return seconds if self.ttl_seconds is None else min(seconds, self.ttl_seconds)

    def encoded(self) -> bytes:
        """Return all that the server has sent, as JSON. Equal listings have equal bytes."""
        received = (self.tools, self.instructions, self.skills, self.apps, self.discovered)
        return to_json((*received, self.schemas, self.header_maps, self.ttl_seconds), fallback=repr)

    def prime(self, session: ClientSession) -> None:
        """Give `session` the tools' schemas, which it would request to check its first result."""
        session._tool_output_schemas = dict(self.schemas)
        session._x_mcp_header_maps = dict(self.header_maps)
        session._tool_output_validators = dict(self._validators)
        read_misfits(session, self.on_outdated)
        check = session.validate_tool_result

        async def validate_tool_result(name: str, result: CallToolResult) -> None:
            await check(name, result)
            self._absorb(session, name)

        session.validate_tool_result = validate_tool_result  # type: ignore[method-assign]

    def _absorb(self, session: ClientSession, tool: str) -> None:
        """Keep the schema that `session` has compiled for a tool, unless it received another listing."""
        validator = session._tool_output_validators.get(tool)
        if validator is not None and validator.schema is self.schemas.get(tool):
            self._validators[tool] = validator
