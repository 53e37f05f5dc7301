"""The MCP requests of a probe, over HTTP and over pipes."""

from __future__ import annotations

import json
from typing import Any

from pallas_gateway import __version__

ID = 1
MODERN = "2026-07-28"
_CLIENT = {"name": "pallas-gateway-health", "version": __version__}
INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": ID,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT},
}
DISCOVER: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": ID,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": _CLIENT,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}


def message(body: bytes | str) -> dict[str, Any]:
    """A JSON-RPC message, {} if the body is not a JSON object."""
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):  # the latter: thousands of brackets
        return {}
    return decoded if isinstance(decoded, dict) else {}
