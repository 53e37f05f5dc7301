"""What MCP clients of this process refer to in a later request: cancellations, log levels, answers, waiting calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.calls.cancellation import Cancellations
from pallas_gateway.calls.log_levels import LogLevels
from pallas_gateway.hosting.waiting_calls import WaitingCalls
from pallas_gateway.questions.client_answers import ClientAnswers

if TYPE_CHECKING:
    from pallas_gateway.questions.elsewhere import Elsewhere


class Sessions:
    """What clients refer to in a later request.

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

    def __init__(self, state_key: bytes | None, elsewhere: Elsewhere) -> None:
        self.cancellations = Cancellations()
        self.log_levels = LogLevels()
        self.answers = ClientAnswers(state_key, elsewhere.process)
        self.waiting_calls = WaitingCalls(state_key, elsewhere.process)
        self.elsewhere = elsewhere
