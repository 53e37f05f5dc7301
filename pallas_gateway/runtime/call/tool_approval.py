"""Limits the calls of tools and asks the caller to approve them, in the method by which an agent's loop runs them.

Tools that a model's provider runs by itself do not pass that method: an agent whose policy names them is not started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fast_agent.constants import HUMAN_INPUT_TOOL_NAME

from pallas_gateway.calls.asking.approvals import approval_question
from pallas_gateway.calls.spending import NO_TOOL_LIMITS
from pallas_gateway.config.loading.tool_policies import LOCAL, may_name_tools_of, of_no_server, policies
from pallas_gateway.errors import AgentStartError
from pallas_gateway.runtime.call.journal import ask_in_tool
from pallas_gateway.runtime.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pallas_gateway.runtime.protocols import AgentSpec


def refuse_unenforceable(agents: Iterable[Any], spec: AgentSpec, known: Collection[str]) -> None:
    """Refuse policies that name tools which the provider of a model runs (`management: provider`), or no server.

    `known` are the servers of a module or card, which may declare some itself; for other agents, the loader has found
    such entries, and agents of the database keep what they were stored with.

    Raises:
        AgentStartError: `bad_approval`, with each of these entries of `approve` and `tool_limits`.
    """
    entries = policies(spec.approve, spec.tool_limits)
    servers = sorted({name for agent in agents for name in getattr(agent, "_provider_managed_server_keys", ())})
    places = [
        (
            place,
            f"{pattern!r} may name tools of the server '{server}', which the model's provider runs by itself; "
            f"remove `management: provider` from that server, or change this entry",
        )
        for place, pattern in entries
        for server in servers
        if may_name_tools_of(server, pattern)
    ]
    if spec.declared is None or spec.declared.card is not None:
        places += of_no_server(entries, known)
    if places:
        raise AgentStartError("; ".join(why for _, why in places), reason="bad_approval", places=places)


class LimitsOfTool:
    """The limits of a call on one tool of an agent."""

    def __init__(self, agent: Any, name: str) -> None:
        turns = current_scope.get().turns
        self._limits = turns.spending.tools if turns is not None else NO_TOOL_LIMITS
        self._names = [tool for tool, _ in _identities(agent, name)] if self._limits else []

    def why_not_run(self) -> str | None:
        """Count a call of the tool; return the model's text if it must not run."""
        if not self._limits or (why := self._limits.acquire(self._names)) is None:
            return None
        tool = self._names[-1]
        return f"The tool '{tool}' was not run: {why}. Do not call it again in this call; answer without it."

    def release(self) -> None:
        """Take back the count of a call that has not run."""
        self._limits.release(self._names)


async def why_not_approved(agent: Any, name: str, arguments: dict[str, Any]) -> str | None:
    """Ask for the approval that the agent's policy demands; return the model's text if the tool must not run.

    Raises:
        ApprovalRequiredError: the request is for the tool itself, and has to bring the approval.
    """
    scope = current_scope.get()
    approvals, run = scope.questions.approvals, scope.tool_run
    asked_under = run.asked_under if run is not None else None  # of another process, whose question has precedence
    if approvals is None or not (approvals.patterns or asked_under):
        return None
    for tool, is_destructive in _identities(agent, name):
        if asked_under or approvals.needed_for(tool, destructive=is_destructive):
            if run is not None:
                run.asked_under = asked_under or approvals.patterns
            question = approval_question(tool, arguments)
            why = approvals.take(await ask_in_tool("approval", question), question, asked_under)
            said = f"The tool '{tool}' was not run: it requires approval, and {why}. Do not call it again."
            return said if why is not None else None
    return None


def _identities(agent: Any, name: str) -> Iterable[tuple[str, bool]]:
    """Yield a tool's name as `server/tool`, and whether its annotations say that it is destructive.

    A name without a server's may be a tool that fast-agent runs by itself (a shell, files, skills), or else one of a
    server: it is taken for both. The tool that asks the caller needs no approval.
    """
    if name == HUMAN_INPUT_TOOL_NAME:
        return
    function = agent._execution_tools.get(name)
    aggregator: Any = getattr(agent, "aggregator", None) if function is None else None
    found = aggregator.resolve_tool_name(name) if aggregator is not None else None
    if found is None or found.server_name is None or found.local_name == name:
        yield f"{LOCAL}/{name}", _is_destructive(function)
    if found is not None and found.server_name is not None:
        tools = aggregator._server_to_tool_map.get(found.server_name, ())
        listed = next((one.tool for one in tools if one.tool.name == found.local_name), None)
        yield f"{found.server_name}/{found.local_name}", _is_destructive(listed)


def _is_destructive(tool: Any) -> bool:
    annotations = getattr(tool, "annotations", None)
    return getattr(annotations, "destructive_hint", None) is True
