"""Writes fast-agent's log events to the gateway's log.

fast-agent's own logging handles events later in another task, and drops them if it must not print. Here they become
log records at once, with the ids of their call.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.current import running_call
from pallas_gateway.changes.change import Fault
from pallas_gateway.telemetry.current_call import current_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from fast_agent.core.logging.logger import Logger

_log = logging.getLogger("pallas.fast_agent")
_LONGEST_DATA = 2_000
_SERIOUS = ("warning", "error")
# It logs each failed connection of each call as an error; the gateway logs once that a server is down.
_SAID_BY_THE_GATEWAY = "fast_agent.mcp."
_WITHOUT_THE_REASON = "Provider stream attempt failed"
"""Logged for every failed turn, without the reason, which is in the gateway's line of the call."""
_ABOUT_SETTINGS = (
    "Task budget ignored",
    "Invalid task budget setting",
    "Reasoning setting ignored",
    "Invalid reasoning setting",
    "Ignoring budget reasoning setting",
    "OpenAI config 'reasoning_effort' is deprecated",
    "Anthropic reasoning disabled",
    "Long context (context=1m) is not supported",
    "Extended thinking is incompatible",
    "Anthropic structured output fell back",
    "Anthropic model ignores unsupported sampling parameters",
    "Ignoring fixed or unsupported Kimi K3 sampling parameters",
    "Kimi K3 always reasons",
)
"""Beginnings of warnings about an agent's settings, which fast-agent logs in every call."""
FAULTS = (
    Fault(
        title="Warnings about settings are written in every call",
        text="""\
Symptom: warnings about ignored settings (a task budget, sampling parameters) are in the log of each call.

Repair: such a warning is written once for each start of an agent.
""",
        library="fast_agent",
        gone_when="fast-agent warns where settings are read, not where an LLM object is made",
        test="tests/e2e/test_provider_messages.py",
    ),
)
_warned: set[tuple[str | None, str]] = set()


def warn_again(agent: str) -> None:
    """Log the warnings about an agent's settings again, at its start."""
    _warned.difference_update([one for one in _warned if one[0] == agent])


def event(original: Callable[..., None], _: type[Logger]) -> Callable[..., None]:
    """Write warnings and errors of fast-agent as warnings, and its other events at DEBUG; its own logging is off."""

    @wraps(original)
    def event(  # noqa: PLR0913, PLR0917  fast-agent's own parameters
        self: Logger, etype: str, ename: str | None, message: str, context: object, data: dict[str, Any]
    ) -> None:
        del context
        serious = etype in _SERIOUS and not self.namespace.startswith(_SAID_BY_THE_GATEWAY) and _is_warning(message)
        level = logging.WARNING if serious else logging.DEBUG
        if not _log.isEnabledFor(level):
            return
        extra: dict[str, Any] = {"source": self.namespace}
        if (agent := running_call.get().agent) is not None and not current_call.get().ids:
            extra["agent"] = agent
        if ename:
            extra["event"] = ename
        data = _flat(data)
        if traceback := data.pop("exception", None):
            extra["exception"] = str(traceback)
        if data:
            extra["data"] = str(data)[:_LONGEST_DATA]
        # Warnings and errors of fast-agent; those about settings once per agent.
        _log.log(level, "%s", message, extra=extra)

    return event


def _is_warning(message: str) -> bool:
    if message == _WITHOUT_THE_REASON:
        return False
    if not message.startswith(_ABOUT_SETTINGS):
        return True
    warning = (running_call.get().agent or current_call.get().ids.get("agent"), message)
    is_new = warning not in _warned
    _warned.add(warning)
    return is_new


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a nested `data`, which most callers use for all fields."""
    nested = data.get("data")
    return {**nested, **{k: v for k, v in data.items() if k != "data"}} if isinstance(nested, Mapping) else dict(data)
