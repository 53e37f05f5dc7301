"""The check and the preparation of fast-agent, which hosts many agents here."""

from __future__ import annotations

from pallas_gateway.changes.change import LOADED, START
from pallas_gateway.changes.registry import registry
from pallas_gateway.runtime import fast_paths
from pallas_gateway.runtime.llm import client_cache
from pallas_gateway.runtime.seams.installation import check_seams, install_seams

_prepared = False


def prepare() -> None:
    """Check fast-agent and make it fit for hosting many agents; safe to call again.

    Raises:
        PlatformError: the installed fast-agent lacks a name that the gateway relies on; the message has it.
        ConfigurationError: `PALLAS_FAST_PATHS` names an unknown fast path.
    """
    global _prepared  # noqa: PLW0603  the patched classes are process-wide, so is this mark
    if _prepared:
        return
    registry().check_switches(also=[path.name for path in fast_paths.PATHS])
    check()
    registry().install(START)
    registry().install(LOADED)
    install_seams()
    for fast_path in fast_paths.OF_FAST_AGENT:
        fast_path.install()
    _prepared = True


def check() -> None:
    """Raise `PlatformError` unless every name exists and takes the parameters that it is called with."""
    check_seams()


async def shut_down() -> None:
    """End fast-agent's process-wide logging and context after the last agent has stopped."""
    await client_cache.close_clients()
    await registry().close()
