"""Names of agents in paths of the console's endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.config.loading.cross_checks import slug

if TYPE_CHECKING:
    from pallas_gateway.core.gateway import Gateway


def agent_named(gateway: Gateway, asked: str) -> str:
    """Return the name of the agent that has this name or slug; what was asked for if there is none."""
    # Where each agent has a port of its own, the registry does not show its name, but its slug.
    return next((name for name in gateway.agents if asked in (name, slug(name))), asked)
