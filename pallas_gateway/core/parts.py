"""The parts of a gateway that differ between a single process and one of several workers."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from pallas_gateway.calls.asking.client_answers import ClientAnswers
from pallas_gateway.calls.asking.elsewhere import Elsewhere
from pallas_gateway.calls.asking.used_states import UsedStates
from pallas_gateway.calls.cancellation import Cancellations
from pallas_gateway.core.calls import Calls
from pallas_gateway.core.waiting_calls import WaitingCalls
from pallas_gateway.shared.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from pallas_gateway.shared.protocol import Shared
    from pallas_gateway.shared.remote import ParentProcess

MOST_SESSIONS = 10_000
"""Sessions whose level is kept; the oldest is dropped for another one."""
_SHOW_INFO = ("debug", "info")


class LogLevels:
    """Sessions of the initialize era whose clients want no messages of the level `info`, that of the assistant stream.

    They set it by `logging/setLevel`, by the session id that the gateway gave out. `hand_on(session, shows_info)`
    passes a level to other processes that serve the port; `session` is the digest of the id. Another replica, and the
    gateway after a restart, do not know it: the call gets all messages, as if its client had set no level.
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


class Sessions:
    """What MCP clients of this process refer to in a later request.

    Args:
        state_key: seals the states of waiting calls unless the configuration has keys. Processes that share a port
            share it. None for a random one.
        elsewhere: the other processes of the gateway; the name of this one is in the ids of questions and in states.

    Attributes:
        cancellations: calls that their clients can cancel.
        log_levels: set by clients.
        answers: of clients, in requests of their own.
        waiting_calls: calls that wait for a repeated request.
    """

    def __init__(self, state_key: bytes | None, elsewhere: Elsewhere, shared: Shared) -> None:
        self.cancellations = Cancellations()
        self.log_levels = LogLevels()
        self.answers = ClientAnswers(state_key, elsewhere.process)
        self.waiting_calls = WaitingCalls(UsedStates(shared, elsewhere.process), state_key, elsewhere.process)
        self.elsewhere = elsewhere


@dataclass
class ProcessParts:
    """The parts of a gateway that depend on its process; by default those of a single process.

    Attributes:
        elsewhere: the other processes of the gateway, and the name and number of this one.
        shared: what this process has in common with the other workers of its gateway.
        parent: of this worker, which runs a part of some features; None in a single process.
        state_key: seals states unless the configuration has keys; None for a random one.
        sessions: of MCP clients.
        calls: of this process.
        stdout: descriptor for an audit log.
    """

    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    shared: Shared = field(default_factory=Memory)
    parent: ParentProcess | None = None
    state_key: InitVar[bytes | None] = None
    sessions: Sessions = field(init=False)
    calls: Calls = field(init=False, default_factory=Calls)
    stdout: int = 1

    def __post_init__(self, state_key: bytes | None) -> None:
        """Make the parts that need others."""
        self.sessions = Sessions(state_key, self.elsewhere, self.shared)
