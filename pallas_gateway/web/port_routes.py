"""The routes of one port."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PortRoutes:
    """What a listener serves: every agent by path, one agent at `/mcp`, the registry, or nested calls only."""

    agents_by_path: bool = False
    agent: str | None = None
    registry: bool = False
    nested_only: bool = False
