"""Log levels that clients of the initialize era set by `logging/setLevel`, by the session id that the gateway gave out.

If several processes serve the same port, a call and its `logging/setLevel` may reach different processes, so each level
is passed to the others. Another replica, and the gateway after a restart, do not know the level: the call gets all
messages, as if its client had set no level.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_SESSIONS = 10_000
"""Sessions whose level is kept; the oldest is dropped for another one."""
_SHOW_INFO = ("debug", "info")


class LogLevels:
    """Sessions whose clients want no messages of the level `info`, the one of the assistant stream.

    `hand_on(session, shows_info)` passes a level to other processes; `session` is the digest of the id.
    """

    def __init__(self, hand_on: Callable[[str, bool], object] = lambda _session, _shows_info: None) -> None:
        self.hand_on = hand_on
        self._quiet: dict[str, None] = {}

    def set(self, session: str | None, level: str) -> None:
        """Keep the level that the client of a session has set; ignored without a session."""
        if session is None:
            return
        digest, shows_info = _digest(session), level in _SHOW_INFO
        self.apply(digest, shows_info=shows_info)
        self.hand_on(digest, shows_info)

    def apply(self, digest: str, *, shows_info: bool) -> None:
        """Keep a level that was set here or in another process."""
        self._quiet.pop(digest, None)
        if not shows_info:
            self._quiet[digest] = None
            if len(self._quiet) > MOST_SESSIONS:
                del self._quiet[next(iter(self._quiet))]

    def shows_info(self, session: str | None) -> bool:
        """Return true unless the client of a session id has set a higher level than `info`."""
        return session is None or not self._quiet or _digest(session) not in self._quiet


def _digest(session: str) -> str:
    return sha256(session.encode()).hexdigest()
