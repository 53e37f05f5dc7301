"""Which downstreams of an agent are down, and when that is worth a line: one pair a minute for each. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Server:
    is_down: bool = False
    is_said: bool = True  # that it is down
    said_at: float = float("-inf")
    unsaid: int = 0


class Outages:
    """Remembers the state of each server and decides what is said. Times are seconds of one monotonic clock."""

    def __init__(self, quiet_seconds: float = 60.0) -> None:
        """A server that flaps goes down, and comes back, in the log once in `quiet_seconds`."""
        self._quiet_seconds = quiet_seconds
        self._servers: dict[str, _Server] = {}

    def down(self, name: str, now: float) -> int | None:
        """A call could not connect; None if that is not to be said, else how many changes before it were not."""
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
        """A call connected; whether to say that the server is back, which is so if its going down was said."""
        server = self._servers.get(name)
        if server is None or not server.is_down:
            return False
        server.is_down = False
        server.unsaid += not server.is_said
        return server.is_said
