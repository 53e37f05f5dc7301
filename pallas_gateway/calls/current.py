"""The running call and its LLM turn, for repairs and fast paths of libraries. The runtime sets them.

What a change has to remember of a call stays in its own file.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallas_gateway.limits import LlmLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from weakref import WeakMethod

_log = logging.getLogger("pallas.runtime")


@dataclass(kw_only=True)
class LlmTurn:
    """One LLM turn and its requests; changes of providers that repeat requests count them here.

    Attributes:
        provider: its name in settings.
        patience: seconds that the provider may take to begin its answer.
        on_repeat: is called when a request is about to be repeated.
        reading_pause: returns the pause between two reads of the streamed answer, in seconds; None without live text.
        sent: the number of requests.
        is_answered: in this attempt.
        failure: of this attempt.
        changed: parameters of the call that a change has replaced, with the values sent.
    """

    provider: str | None = None
    patience: float | None = None
    on_repeat: Callable[[], object] = lambda: None
    reading_pause: Callable[[], float | None] = lambda: 0.0
    sent: int = 0
    is_answered: bool = False
    failure: Exception | None = None
    changed: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentCall:
    """The running call; outside of calls, its defaults.

    Methods are weak references: tasks and timers may keep a context longer than its call lasts, and must not keep a
    stopped agent in memory.

    Attributes:
        agent: its name, also while an instance of it is made.
        images: images and documents of the call, as base64.
        llm_limits: of the requests to providers.
        on_llm_repeat: is called with an LLM that is about to repeat a request.
        reading_pause: returns that of an LLM's streamed answer; see `LlmTurn`.
        turn: the running LLM turn.
    """

    agent: str | None = None
    images: Sequence[str] = ()
    llm_limits: LlmLimits = field(default_factory=LlmLimits)
    on_llm_repeat: WeakMethod[Callable[[Any], None]] | None = None
    reading_pause: WeakMethod[Callable[[Any], float | None]] | None = None
    turn: LlmTurn | None = None


class Unshared[T](list[T]):
    """Values that only one instance of an agent has: what takes them may keep them uncopied."""


running_call: ContextVar[AgentCall] = ContextVar("pallas_running_call", default=AgentCall())  # noqa: B039  frozen


def current_turn() -> LlmTurn:
    """The running LLM turn; outside of calls, one that nothing else knows."""
    return running_call.get().turn or LlmTurn()


@contextmanager
def calling(call: AgentCall) -> Iterator[None]:
    """Make `call` the current one for the block."""
    token = running_call.set(call)
    try:
        yield
    finally:
        running_call.reset(token)


def say_repeated(why: str, attempt: int) -> None:
    """Log that a request to a provider failed and is sent again; `attempt` is the number of the failed one."""
    turn = current_turn()
    _log.warning("LLM request repeated", extra={"provider": turn.provider, "attempt": attempt, "error": why})
    turn.on_repeat()
