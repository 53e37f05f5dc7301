"""States of an agent's downstreams, and the changes to log: at most one pair a minute for each. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Server:
    is_down: bool = False
    is_said: bool = True  # that it is down
    said_at: float = float("-inf")
    unsaid: int = 0


class Outages:
    """The state of each server; decides which changes are logged. Times are seconds of one monotonic clock."""

    def __init__(self, quiet_seconds: float = 60.0) -> None:
        """Of a server that flaps, one outage is logged in `quiet_seconds`."""
        self._quiet_seconds = quiet_seconds
        self._servers: dict[str, _Server] = {}

    def down(self, name: str, now: float) -> int | None:
        """Record an outage. Return None if it is not logged, else the number of changes before it that were not."""
        server = self._servers.setdefault(name, _Server())
        if not server.is_down:
            server.is_down, server.is_said = True, False
            server.unsaid += 1
        if server.is_said or now - server.said_at < self._quiet_seconds:
            return None
        before, server.unsaid = server.unsaid - 1, 0
        server.is_said, server.said_at = True, now
        return before

    def up(self, name: str) -> bool:
        """Record a connection. Return True if it is logged, which is so if the outage was."""
        server = self._servers.get(name)
        if server is None or not server.is_down:
            return False
        server.is_down = False
        server.unsaid += not server.is_said
        return server.is_said
