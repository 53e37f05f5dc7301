"""The parts of a gateway that differ between a single process and one of several workers."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

from pallas_gateway.calls.asking.client_answers import ClientAnswers
from pallas_gateway.calls.asking.elsewhere import Elsewhere
from pallas_gateway.calls.asking.used_states import UsedStates
from pallas_gateway.calls.cancellation import Cancellations
from pallas_gateway.calls.log_levels import LogLevels
from pallas_gateway.core.calls import Calls
from pallas_gateway.core.waiting_calls import WaitingCalls
from pallas_gateway.shared.memory import Memory

if TYPE_CHECKING:
    from pallas_gateway.shared.protocol import Shared
    from pallas_gateway.shared.remote import ParentProcess


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
