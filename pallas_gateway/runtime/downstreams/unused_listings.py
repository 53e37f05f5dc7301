"""Lists prompts and resources of a downstream only when they are used; fast-agent lists them with the tools.

A model does not see them. Prompts are listed when an agent's code asks for prompts, resources if a tool refers to a
resource (MCP Apps).
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from fast_agent.mcp.mcp_aggregator import MCPAggregator

if TYPE_CHECKING:
    from pallas_gateway.runtime.compat.requirements import ReliedOn

RELIED_ON: ReliedOn = (
    (MCPAggregator, "_fetch_server_prompts", ("self", "server_name")),
    (MCPAggregator, "_commit_server_attachment", ("self", "server_name", "discovery")),
    (MCPAggregator, "_collect_app_resources", ("self", "server_name", "config", "tool_configs")),
    (MCPAggregator, "_resolve_prompt_name", ("self", "prompt_name", "server_name")),
    (MCPAggregator, "get_prompt", ("self", "prompt_name", "arguments", "server_name")),
    (MCPAggregator, "list_prompts", ("self", "server_name")),
    (MCPAggregator, "_prompt_cache", ()),
)


def prepare() -> None:
    """Replace the methods that list prompts and resources."""
    _list_prompts_later()
    _list_resources_of_tools()


def _list_prompts_later() -> None:
    commit, get = MCPAggregator._commit_server_attachment, MCPAggregator.get_prompt

    async def fetch_server_prompts(self: MCPAggregator, server_name: str, **_: Any) -> list[Any]:
        del self, server_name
        return []

    @wraps(commit)
    async def commit_server_attachment(self: MCPAggregator, server_name: str, *more: Any, **options: Any) -> None:
        await commit(self, server_name, *more, **options)
        self._prompt_cache.pop(server_name, None)  # an empty list would mean that it has none

    @wraps(get)
    async def get_prompt(
        self: MCPAggregator,
        prompt_name: str,
        arguments: dict[str, str] | None = None,
        server_name: str | None = None,
    ) -> Any:
        await self.list_prompts(self._resolve_prompt_name(prompt_name, server_name).server_name)
        return await get(self, prompt_name, arguments, server_name)

    aggregator: Any = MCPAggregator
    aggregator._fetch_server_prompts = wraps(MCPAggregator._fetch_server_prompts)(fetch_server_prompts)
    aggregator._commit_server_attachment = commit_server_attachment
    aggregator.get_prompt = get_prompt


def _list_resources_of_tools() -> None:
    original = MCPAggregator._collect_app_resources

    @wraps(original)
    async def collect_app_resources(
        self: MCPAggregator, server_name: str, config: Any, tool_configs: list[Any], **options: Any
    ) -> None:
        if any(tool.resource_uri is not None for tool in tool_configs):
            await original(self, server_name, config, tool_configs, **options)

    MCPAggregator._collect_app_resources = collect_app_resources  # type: ignore[method-assign]
