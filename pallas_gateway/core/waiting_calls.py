"""Calls that wait for answers of their clients between two requests: the form of questions in 2026-07-28.

There a question ends the request: its result has the questions and a state, and the client repeats the request with the
answers and that state. The call itself goes on in its own task and finds its client again by the state.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from time import monotonic, time
from typing import TYPE_CHECKING, Any, override

from pallas_gateway.calls.asking.used_states import StatesUnavailableError
from pallas_gateway.calls.events.queue import EventQueue, StreamOptions
from pallas_gateway.calls.questions import EXPIRED
from pallas_gateway.core.running_call import RunningCall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pallas_gateway.calls.asking.used_states import UsedStates
    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Answer, Mode, Question
    from pallas_gateway.core.hosted_agent import HostedAgent


@dataclass(frozen=True, slots=True)
class _Open:
    question: Question
    answer: asyncio.Future[Answer]
    since: float = field(default_factory=monotonic)


class WaitingCall(RunningCall):
    """A call whose client may have no request at present; it is the `Asker` of itself.

    Attributes:
        events: those that the client has not been sent yet.
        ticket: of the state with which the client returns.
        is_in_state: the latest state has the place from where another process can resume the call.
        work: the task of the call, also when it has ended; None before, and for a call that was cancelled.
        asked: is done when a question is open.
        declares_tasks: the present request accepts a task in place of the answer.
        created: the result of the request in which the call has become a task; None for any other call.
    """

    def __init__(self, agent: HostedAgent, call: Call, modes: Collection[Mode]) -> None:
        self.events = EventQueue(StreamOptions())
        super().__init__(agent, call, self.events, self.events.options)
        self.modes, self.client_may_leave = modes, True
        self.declares_tasks = False
        self.created: Mapping[str, Any] | None = None
        self.ticket = ""
        self.is_in_state = False
        self.work: asyncio.Task[Reply] | None = None
        self.asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open: dict[str, _Open] = {}
        self._ending: asyncio.TimerHandle | None = None

    # the asker

    @override
    async def put(self, question: Question) -> Answer:
        """Return the answer that the client gives with a later request."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[question.id] = _Open(question, answer)
        if not self.asked.done():
            self.asked.set_result(None)
        try:
            return await answer
        finally:
            self._open.pop(question.id, None)

    @property
    def open(self) -> Mapping[str, Question]:
        """Return the open questions by their ids."""
        return {id_: one.question for id_, one in self._open.items()}

    @property
    def can_be_resumed(self) -> bool:
        """True if another process can continue the call from where it waits."""
        return self.checkpoint(self.open.keys()) is not None

    def answer(self, answers: Mapping[str, Answer], seconds: float) -> None:
        """Close the questions with these ids, and those that have been open for more than `seconds`."""
        self.asked = asyncio.get_running_loop().create_future()
        expired = {id_: EXPIRED for id_, one in self._open.items() if monotonic() - one.since > seconds}
        for id_, answer in {**answers, **expired}.items():
            if (one := self._open.pop(id_, None)) is not None and not one.answer.done():
                one.answer.set_result(answer)
        if self._open:
            self.asked.set_result(None)

    # the client

    def attach(self, options: StreamOptions) -> None:
        """Send the kept events, and all later ones, to the request with these options."""
        if self._ending is not None:
            self._ending.cancel()
        self.events.serve(options)

    def until_asked(self, work: asyncio.Task[Reply]) -> asyncio.Task[Any]:
        """Return a task that ends with the call, or with its next question."""
        either: set[asyncio.Future[Any]] = {work, self.asked}
        return asyncio.create_task(asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED), name="next question")

    def leave(self) -> None:
        """Keep the turns and tools until the next request, because that of the client ends."""
        self.events.serve(StreamOptions())

    def detach(self, seconds: float, on_end: Callable[[], object]) -> str:
        """Wait for the next request of the client, at most `seconds`; return the ticket of its state.

        After that time the call ends and `on_end` is called.
        """
        self.ticket = f"{secrets.token_hex(8)}-{int(time() + seconds) + 1}"  # with the time until which it is accepted

        def end() -> None:
            self.abandon()
            on_end()

        self._ending = asyncio.get_running_loop().call_later(seconds, end)
        return self.ticket

    def abandon(self) -> None:
        """End the call, because its client has not returned."""
        self.give_up()
        self.work = None  # a task that was cancelled has the frames of the call, which refer to this object

    def give_up(self) -> None:
        """End the call."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None  # its callback refers to this call
        if self.work is not None:
            self.work.cancel()


@dataclass(frozen=True, slots=True)
class Sealing:
    """Set the keys of states: the first key seals, all open; a state is valid for so many seconds."""

    keys: tuple[bytes, ...] = field(default_factory=lambda: (secrets.token_bytes(32),), repr=False)
    seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The place where a call of another process has waited, by the ticket of its state."""

    ticket: str
    checkpoint: str = field(repr=False)


class WaitingCalls:
    """The calls of this process that wait until their clients repeat the request with answers.

    `sealing` says how their states are sealed; `own_key` is the key of a gateway without `state_keys`;
    `process` names this process in them. `used` accepts states once in all processes of the gateway.
    """

    def __init__(self, used: UsedStates, own_key: bytes | None = None, process: str | None = None) -> None:
        self._own_key = own_key or secrets.token_bytes(32)
        self.sealing = Sealing((self._own_key,))
        self.process = process or secrets.token_hex(4)
        self._calls: dict[str, WaitingCall] = {}
        self._is_over = False
        self._used = used
        self._stored: UsedStates | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def works(self) -> list[asyncio.Task[Reply]]:
        return [call.work for call in self._calls.values() if call.work is not None]

    def seal_with(self, keys: Collection[str], seconds: float, stored: UsedStates | None = None) -> None:
        """Use these keys for later states; without keys, a key of the gateway.

        Only with keys can other gateways, or this one after a restart, open its states. `stored` accepts those once.
        """
        self.sealing = Sealing(tuple(key.encode() for key in keys) or (self._own_key,), seconds)
        self._stored = stored if keys else None

    @property
    def _uses(self) -> UsedStates:
        return self._stored or self._used

    def detach(self, call: WaitingCall) -> str:
        """Keep a call for the next request of its client; return the state that identifies it.

        The state has no checkpoint while it could not be accepted elsewhere. So this process alone can continue the
        call, and need not ask whether another one has.
        """
        call_id = call.call.call_id
        ticket = call.detach(self.sealing.seconds, lambda: self._calls.pop(call_id, None))
        may_be_resumed = self._uses.is_available and call.work is not None  # else it ends while it asks
        checkpoint = (call.checkpoint(call.open.keys()) if may_be_resumed else None) or ""
        call.is_in_state = bool(checkpoint)
        state = f"{self.process}.{call_id}.{ticket}.{checkpoint}"
        if self._is_over:
            call.abandon()
        else:
            self._calls[call_id] = call
        return state

    def end(self) -> None:
        """End calls that wait for their clients, now and later; another process may resume them."""
        self._is_over = True
        for call in self._calls.values():
            call.abandon()
        self._calls.clear()

    def remove(self, call: WaitingCall) -> None:
        """End a call that waits for its client."""
        self._calls.pop(call.call.call_id, None)
        call.abandon()

    async def spend_state(self, call_id: str) -> None:
        """Let no other process resume a call that was ended while it waited; its client still reads the end here.

        Raises:
            StatesUnavailableError: another process may resume it.
        """
        call = self._calls.get(call_id)
        if call is not None and call.is_in_state:
            call.is_in_state = False
            await self._uses.use(call.ticket, _seconds_left(call.ticket))

    async def attach(self, call: WaitingCall, answers: Mapping[str, Answer]) -> None:
        """Continue a call with answers to its questions; its state cannot be used again.

        Raises:
            LookupError: another process has resumed the call, or it has ended meanwhile.
            StatesUnavailableError: this is not known now; the call still waits.
        """
        del self._calls[call.call.call_id]
        try:
            is_first = not call.is_in_state or await self._uses.use(call.ticket, _seconds_left(call.ticket))
        except StatesUnavailableError:
            if self._is_over:
                call.abandon()
            elif call.work is not None:
                self._calls[call.call.call_id] = call
            raise
        except asyncio.CancelledError:
            call.abandon()  # its client has left
            raise
        if not is_first:
            call.abandon()
        if call.work is None:
            raise LookupError(call.ticket)
        call.answer(answers, self.sealing.seconds)

    async def resume(self, state: str) -> Checkpoint | None:
        """Use a state of another process; return where its call has waited, None for a call that cannot be resumed.

        Raises:
            LookupError: the state was used.
            StatesUnavailableError: this is not known now.
        """
        _, _, ticket, checkpoint = state.split(".", 3)
        if not checkpoint:
            return None
        if not await self._uses.use(ticket, _seconds_left(ticket)):
            raise LookupError(ticket)
        return Checkpoint(ticket, checkpoint)

    async def release(self, ticket: str) -> None:
        """Accept a state again, because its call has not begun."""
        await self._uses.release(ticket)

    def is_elsewhere(self, state: str | None) -> bool:
        """Return whether a state is one of another process."""
        return state is not None and state.partition(".")[0] != self.process

    def find(self, state: str) -> WaitingCall | None:
        """Return the call of a state; None for one that was used or has ended."""
        _, call_id, ticket, _ = state.split(".", 3)
        call = self._calls.get(call_id)
        return call if call is not None and secrets.compare_digest(call.ticket, ticket) else None


def _seconds_left(ticket: str) -> float:
    """Return the seconds in which a state is accepted: `ask_seconds` may have been longer when it was sealed."""
    return max(int(ticket.rpartition("-")[2]) - time(), 1.0)
