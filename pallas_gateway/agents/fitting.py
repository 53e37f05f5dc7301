"""A call's parameters, completed by its agent's defaults and fitted to the model that will answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_gateway.calls.parameters import clamped, resolved

if TYPE_CHECKING:
    from pallas_gateway.agents.version import AgentVersion
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.runtime.protocols import ModelFacts


_WITHOUT_THINKING = ("temperature", "top_p", "top_k", "tool_choice")
"""Parameters for which a model may have to stop thinking."""


def model_for(call: Call, version: AgentVersion) -> ModelFacts:
    """The model that answers: the one that the caller has chosen, else the agent's own."""
    chosen = call.parameters.model
    return version.runtime.model if chosen is None else version.runtime.model_named(chosen)


def with_defaults(call: Call, version: AgentVersion) -> Call:
    """The call with every parameter as it will be asked for."""
    whole = resolved(call.parameters, version.settings.default_params)
    return replace(call, parameters=clamped(whole, model_for(call, version).max_output_tokens))


def told_of_changes(reply: Reply, asked: Call, sent: Call) -> Reply:
    """The reply, as far as it says of parameters what the caller asked for; the agent's defaults are not its own."""
    ignored = tuple(name for name in reply.ignored if name in asked.parameters.given())
    wished = asked.parameters.max_tokens
    used = reply.changed.get("max_tokens", sent.parameters.max_tokens)
    changed = {}
    if wished is not None and used is not None and used != wished and "max_tokens" not in ignored:
        changed["max_tokens"] = used
    if "thinking" in reply.changed and asked.parameters.given().keys() & _WITHOUT_THINKING:
        changed["thinking"] = reply.changed["thinking"]
    return replace(reply, ignored=ignored, changed=changed)
