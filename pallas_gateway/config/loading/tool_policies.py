"""Entries of `approve` and `tool_limits`: the tools that they may name, and those that name none. Pure."""

from collections.abc import Collection, Iterable, Iterator

from pallas_gateway.config.model.values import WILDCARD
from pallas_gateway.config.problems import did_you_mean

DESTRUCTIVE = "destructive"
"""The entry of `approve` that stands for tools whose own annotations have `destructiveHint`."""
LOCAL = "local"
"""The server in the names of an agent's own functions."""


def policies(approve: Iterable[str], tool_limits: Iterable[str]) -> list[tuple[str, str]]:
    """Return each entry with its place in the agent's settings."""
    approvals = [(f"approve.{index}", pattern) for index, pattern in enumerate(approve)]
    return [*approvals, *((f"tool_limits.{pattern}", pattern) for pattern in tool_limits)]


def may_name_tools_of(server: str, pattern: str) -> bool:
    """Return True if an entry can match tools of a server."""
    beginning, tools = WILDCARD.split(pattern, maxsplit=1)[0], f"{server}/"
    return pattern == DESTRUCTIVE or tools.startswith(beginning) or beginning.startswith(tools)


def of_no_server(entries: Iterable[tuple[str, str]], servers: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the place and the problem of each entry that can match no tool of the servers and no local one."""
    known = sorted({LOCAL, *servers})
    for place, pattern in entries:
        if not any(may_name_tools_of(server, pattern) for server in known):
            named = pattern.partition("/")[0]
            yield place, f"'{pattern}' is of no server or agent of this project{did_you_mean(named, known)}"
