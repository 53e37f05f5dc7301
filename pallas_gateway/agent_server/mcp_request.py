"""One MCP request over HTTP: its body, and the JSON-RPC envelope in it, which is parsed once and only if needed."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pydantic_core
from mcp_types import JSONRPCRequest

from pallas_gateway.agent_server.tools import GET_HEALTH
from pallas_gateway.calls.json_size import has_too_many_values

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message


class McpRequest:
    """A POST whose body has been read.

    Attributes:
        http: the request; its `receive` returns what the client does after the body.
        body: of the request, within the limit of bytes.
    """

    def __init__(self, http: Request, body: bytes) -> None:
        self.http = http
        self.body = body
        self._unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive(self) -> Message:
        """Return the body as one message, then what the client does; for an ASGI app that reads the request itself."""
        return self._unread.pop() if self._unread else await self.http.receive()

    @cached_property
    def has_too_many_values(self) -> bool:
        """True if the body must not be parsed."""
        return has_too_many_values(self.body)

    @property
    def initializes(self) -> bool:
        """True for an `initialize` request."""
        return b'"initialize"' in self.body and _method_of(self._envelope) == "initialize"

    @property
    def call(self) -> JSONRPCRequest | None:
        """A well-formed `tools/call`; None if the body is anything else."""
        if b'"tools/call"' not in self.body or _method_of(self._envelope) != "tools/call":
            return None
        try:
            return JSONRPCRequest.model_validate(self._envelope, by_name=False)
        except ValueError:
            return None

    @cached_property
    def tool(self) -> str | None:
        """The tool that is called, well-formed or not: "" if it cannot be told, None if the request calls none."""
        if self.has_too_many_values:
            return ""
        envelope = self._envelope
        if envelope is None:
            try:  # as leniently as the SDK in the 2026-07-28 era: UTF-16, half surrogate pairs
                envelope = json.loads(self.body)
            except (ValueError, RecursionError):
                return None
        if _method_of(envelope) != "tools/call":
            return None
        params = envelope.get("params")
        name = params.get("name") if isinstance(params, dict) else None
        return name if isinstance(name, str) else ""

    @property
    def calls_agent(self) -> bool:
        """True for a call of any tool but `get_health`."""
        return self.tool not in (None, GET_HEALTH)

    @cached_property
    def _envelope(self) -> Any:
        try:
            return pydantic_core.from_json(self.body)
        except ValueError:
            return None


def _method_of(envelope: Any) -> Any:
    return envelope.get("method") if isinstance(envelope, dict) else None
