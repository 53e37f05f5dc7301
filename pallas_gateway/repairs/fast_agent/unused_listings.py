"""Prompts and resources are listed with the tools.

Symptom: each call lists a server's prompts and the resources of its tools' apps, which no model sees.

Repair: prompts are listed when an agent's code asks for them, resources if a tool refers to one (MCP Apps).
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import REPAIR, Change, Name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fast_agent.mcp.mcp_aggregator import MCPAggregator

_AGGREGATOR = "fast_agent.mcp.mcp_aggregator:MCPAggregator"
_RESOURCES = ("self", "server_name", "config", "tool_configs")
CHANGE = Change(
    "unused-listings",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    replaces=(
        Name(f"{_AGGREGATOR}._fetch_server_prompts", ("self", "server_name"), by="fetch_no_prompts"),
        Name(f"{_AGGREGATOR}._commit_server_attachment", ("self", "server_name", "discovery"), by="forget_no_prompts"),
        Name(f"{_AGGREGATOR}.get_prompt", ("self", "prompt_name", "arguments", "server_name"), by="list_before_prompt"),
        Name(f"{_AGGREGATOR}._collect_app_resources", _RESOURCES, by="collect_if_referred_to"),
    ),
    relies_on=(
        Name(f"{_AGGREGATOR}._resolve_prompt_name", ("self", "prompt_name", "server_name")),
        Name(f"{_AGGREGATOR}.list_prompts", ("self", "server_name")),
        Name(f"{_AGGREGATOR}._prompt_cache"),
    ),
    gone_when="`MCPAggregator` lists prompts and resources when they are asked for",
)


def fetch_no_prompts(original: Callable[..., Awaitable[list[Any]]], _: object) -> Callable[..., Awaitable[list[Any]]]:
    """Request no prompts when a server is attached."""

    @wraps(original)
    async def fetch_server_prompts(self: MCPAggregator, server_name: str, **_: Any) -> list[Any]:
        del self, server_name
        return []

    return fetch_server_prompts


def forget_no_prompts(original: Callable[..., Awaitable[None]], _: object) -> Callable[..., Awaitable[None]]:
    """Remove the empty list of prompts, which would mean that the server has none."""

    @wraps(original)
    async def commit_server_attachment(self: MCPAggregator, server_name: str, *more: Any, **options: Any) -> None:
        await original(self, server_name, *more, **options)
        self._prompt_cache.pop(server_name, None)

    return commit_server_attachment


def list_before_prompt(original: Callable[..., Awaitable[Any]], _: object) -> Callable[..., Awaitable[Any]]:
    """List the prompts of a server before one of them is requested."""

    @wraps(original)
    async def get_prompt(
        self: MCPAggregator,
        prompt_name: str,
        arguments: dict[str, str] | None = None,
        server_name: str | None = None,
    ) -> Any:
        await self.list_prompts(self._resolve_prompt_name(prompt_name, server_name).server_name)
        return await original(self, prompt_name, arguments, server_name)

    return get_prompt


def collect_if_referred_to(original: Callable[..., Awaitable[None]], _: object) -> Callable[..., Awaitable[None]]:
    """List resources only if a tool refers to one."""

    @wraps(original)
    async def collect_app_resources(
        self: MCPAggregator, server_name: str, config: Any, tool_configs: list[Any], **options: Any
    ) -> None:
        if any(tool.resource_uri is not None for tool in tool_configs):
            await original(self, server_name, config, tool_configs, **options)

    return collect_app_resources
