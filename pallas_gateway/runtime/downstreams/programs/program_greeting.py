"""The first request to a process of a stdio server, and which connections may take a process that has answered it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_types import JSONRPCRequest

DISCOVER = "server/discover"
INITIALIZE = "initialize"
INITIALIZED = "notifications/initialized"


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first request of a connection: `initialize` or `server/discover`.

    `key` is equal for connections that may take the same process. `initialize` declares what its client supports, so
    that its key has all parameters. `server/discover` declares nothing that lasts.
    """

    method: str
    params: dict[str, Any]
    key: str

    @classmethod
    def of(cls, request: JSONRPCRequest, *, shared: bool) -> Greeting:
        """Return the greeting without marks of the call, and for a shared process without what a caller supports."""
        params = dict(request.params or {})
        if request.method == INITIALIZE:
            params.pop("_meta", None)
            if shared:
                params["capabilities"] = {}
            return cls(request.method, params, json.dumps(params, sort_keys=True))
        return cls(request.method, params, DISCOVER)
