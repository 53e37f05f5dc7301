"""Filters of tools: a filtered tool is not run, and a filter or policy that matches no tool is reported.

fast-agent only leaves filtered tools out of the list. A model may still name one, which it guessed or read in a text.
"""

from __future__ import annotations

import logging
from fnmatch import fnmatch, fnmatchcase
from typing import TYPE_CHECKING

from fast_agent.constants import HUMAN_INPUT_TOOL_NAME
from fast_agent.mcp.common import SEP, get_resource_name, get_server_name

from pallas_gateway.calls.tool_names import real_name
from pallas_gateway.config.problems import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from fast_agent.agents.agent_types import AgentConfig
    from fast_agent.agents.mcp_agent import McpAgent

    from pallas_gateway.calls.questions import Mode

_NOT_AVAILABLE = "Tool '{}' is not available."
_log = logging.getLogger("pallas.runtime")


async def why_withheld(agent: McpAgent, name: str) -> str | None:
    """Return the model's text if `name`, which may lack the server's, is a tool that the agent does not have."""
    if name == HUMAN_INPUT_TOOL_NAME and not agent.config.human_input:
        return _NOT_AVAILABLE.format(name)
    if not agent.config.tools:
        return None
    found = agent.aggregator.resolve_tool_name(name)
    if found.server_name is None:
        return None
    server = agent.aggregator.server_display_name(found.server_name)
    if passes(agent.config.tools, real_name(server, found.local_name)):
        return None
    if any(tool.name == name for tool in (await agent.list_tools()).tools):
        return None  # a function of the agent
    return _NOT_AVAILABLE.format(name)


def passes(filters: Mapping[str, Sequence[str]], tool: str) -> bool:
    """True if fast-agent's filters let a tool through: those of its server do, or there are none."""
    server = get_server_name(tool)
    return server not in filters or any(fnmatch(get_resource_name(tool), pattern) for pattern in filters[server])


def may_use(configs: Iterable[AgentConfig], server: str, tool: str) -> bool:
    """True if one of the agents has the server, and its filters let the tool through."""
    name = real_name(server, tool)
    return any(server in config.servers and passes(config.tools or {}, name) for config in configs)


class FilterReport:
    """The filters and policies of a hosted agent that match no tool, known once all their servers have been listed.

    A policy for one server is checked. One for several (`*/delete_*`) is a precaution, which need not match a tool now.

    Attributes:
        look_further: starts listing the tools that a server offers to callers that can be asked; returns False if it
            cannot. A filter that matches no tool for other callers is not reported before.
    """

    def __init__(
        self,
        agent: str,
        configs: Iterable[AgentConfig],
        varying: Collection[str] = (),
        policies: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Set the filters to check.

        Args:
            agent: the hosted agent.
            configs: of its agents.
            varying: servers whose tools may differ between callers, so that their filters cannot be checked.
            policies: entries of `approve` and `tool_limits`, each with its place in the agent's settings.
        """
        self._agent = agent
        self._varying = varying
        self._servers: dict[str, set[str]] = {}  # servers of each filter, by the filter as a name of tools
        self._policies: list[tuple[str, str, str]] = []  # of one server: the key, the pattern, the server
        policies = list(policies)
        for config in configs:
            for server in config.servers:
                found = ((place.partition(".")[0], pattern, server) for place, pattern in policies)
                self._policies += (
                    one for one in found if one[1].startswith(f"{server}/") and one not in self._policies
                )
            for prefix, patterns in (config.tools or {}).items():
                servers = {server for server in config.servers if get_server_name(f"{server}{SEP}") == prefix}
                for pattern in set(patterns) - {"*"}:
                    self._servers.setdefault(f"{prefix}{SEP}{pattern}", set()).update(servers)
        self.look_further: Callable[[str], bool] = lambda _: False
        self._listed: dict[str, dict[frozenset[Mode], list[str]]] = {}
        self._unmatched: dict[str, str] = {}

    def on_listed(self, server: str, tools: Iterable[str], modes: Collection[Mode] = ()) -> None:
        """Set the tools of `server` for callers that can be asked in `modes`; log each filter that matches none."""
        if server in self._varying:
            return
        self._listed.setdefault(server, {})[frozenset(modes)] = list(tools)
        before, self._unmatched = self._unmatched, dict(self._find())
        for name in self._unmatched.keys() - before.keys():
            extra = {"agent": self._agent, "filter": name, "problem": self._unmatched[name]}
            # An entry of `tools`, `approve` or `tool_limits`, with the nearest tool.
            _log.warning("tool filter matches no tool", extra=extra)

    @property
    def problems(self) -> tuple[str, ...]:
        """A clause for each filter, and each policy, that matches no tool."""
        return tuple(self._unmatched.values())

    def _find(self) -> Iterator[tuple[str, str]]:
        for name, servers in self._servers.items():
            if servers and servers <= self._listed.keys():
                tools = [real_name(one, tool) for one in sorted(servers) for tool in self._tools(one)]
                if any(fnmatch(get_resource_name(tool), get_resource_name(name)) for tool in tools):
                    continue
                if not any(self._is_open(server) for server in sorted(servers)):
                    yield name, f"'{name}' matches no tool{did_you_mean(name, tools)}"

        for key, pattern, server in self._policies:
            tools = [f"{server}/{tool}" for tool in self._tools(server)]
            is_matched = server not in self._listed or any(fnmatchcase(tool, pattern) for tool in tools)
            if not is_matched and not self._is_open(server):
                yield f"{key}: {pattern}", f"{key}: '{pattern}' matches no tool{did_you_mean(pattern, tools)}"

    def _tools(self, server: str) -> list[str]:
        return sorted({tool for listed in self._listed.get(server, {}).values() for tool in listed})

    def _is_open(self, server: str) -> bool:
        """True if the server is being listed for callers that can be asked, for the first time."""
        is_listed = any(modes for modes in self._listed[server])
        return not is_listed and self.look_further(server)
