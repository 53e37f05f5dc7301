"""fast-agent's programmatic tool calling (`ptc`, since 0.10.47): off, whatever switches it on.

The model gets one tool that runs its Python code, and the code calls the agent's tools. Approvals, tool filters, events
and the loop guard of the gateway have not been shown to see these inner calls.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

if TYPE_CHECKING:
    from fast_agent.config import Settings

SECTION = "ptc"
KEY = f"{SECTION}.enabled"
VARIABLE = "PTC__ENABLED"
WHY_REFUSED = (
    "programmatic tool calling is not supported: approvals, tool filters, events and the loop guard may not see the "
    "calls of its code; "
)
_log = logging.getLogger("pallas.runtime")
_switch = TypeAdapter(bool)


def is_on(section: object) -> bool:
    """True if the section, as written or as fast-agent has read it, switches programmatic tool calling on."""
    enabled = section.get("enabled") if isinstance(section, Mapping) else getattr(section, "enabled", False)
    try:
        return _switch.validate_python(enabled)
    except ValidationError:
        return False  # fast-agent refuses the value


def why_refused(written: Mapping[str, Any], settings: Settings | None) -> str | None:
    """Return what to do; None if neither the files nor, in fast-agent's settings, the environment switches it on."""
    if is_on(written.get(SECTION)):
        return f"{WHY_REFUSED}remove the key, or set it to false"
    if settings is not None and is_on(settings.ptc):
        return f"{WHY_REFUSED}unset the environment variable {VARIABLE}"
    return None


def switch_off(settings: Settings) -> None:
    """Switch it off, with a warning if it was on."""
    if not is_on(settings.ptc):
        return
    # `ptc.enabled` of fast-agent has [no effect](security.md).
    _log.warning("programmatic tool calling off", extra={"key": KEY})
    settings.ptc.enabled = False
