"""Prepares fast-agent for hosting many agents: checks its names, changes its libraries, and enters it by the seams."""

from __future__ import annotations

from pallas_gateway.changes.change import LOADED, START
from pallas_gateway.changes.registry import registry
from pallas_gateway.runtime.seams.installation import check_seams, install_seams

_prepared = False


def prepare() -> None:
    """Check fast-agent and make it fit for hosting many agents; safe to call again.

    Raises:
        PlatformError: the installed fast-agent lacks a name that the gateway relies on; the message has it.
        ConfigurationError: `PALLAS_CHANGES` has a name without `-` before it.
    """
    global _prepared  # noqa: PLW0603  libraries are changed for the whole process
    if _prepared:
        return
    registry().check_switches()
    check_seams()
    registry().install(START)
    registry().install(LOADED, ())  # a provider that does not fit is an error of the agents that use it
    install_seams()
    _prepared = True


async def shut_down() -> None:
    """End fast-agent's process-wide logging and context after the last agent has stopped."""
    await registry().close()
