"""The routes of one port."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PortRoutes:
    """The routes of a listener: every agent by path, one agent at `/mcp`, or the registry."""

    agents_by_path: bool = False
    agent: str | None = None
    registry: bool = False
