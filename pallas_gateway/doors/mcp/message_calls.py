"""The calls of an agent's message tool: how MCP requests become `RunningCall`s, and the results go back.

A request of a call of 2026-07-28 that asks ends with its questions, and the next one continues it. Its task goes on
between two requests; if its process has ended, the call is resumed from its state.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from mcp import MCPError
from mcp_types import INVALID_PARAMS

from pallas_gateway.calls.asking.used_states import StatesUnavailableError
from pallas_gateway.calls.call import Reply
from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.events.queue import EventQueue
from pallas_gateway.calls.questions import MODES
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.core.waiting_calls import WaitingCall
from pallas_gateway.doors.mcp.rounds import ENDED_WITH_PROCESS, questions_result
from pallas_gateway.doors.mcp.tool_requests import parsed
from pallas_gateway.doors.mcp.tools import call_result
from pallas_gateway.errors import CallFailedError, CallRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.questions import Answer
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.parts import Sessions
    from pallas_gateway.core.waiting_calls import Checkpoint, WaitingCalls
    from pallas_gateway.doors.mcp.rounds import Round
    from pallas_gateway.doors.mcp.tasks import McpTasks
    from pallas_gateway.doors.mcp.tool_requests import McpToolRequest, MessageResult
    from pallas_gateway.errors import GatewayError


_MAY_WAIT = (
    "The call was cancelled. If it waits at another replica of the gateway, it ends there when its state expires, "
    "without another turn of the model."
)
_ASKS = Reply((), "input_required")
"""In place of the reply of a call that waits for its next request, or has become a task."""


async def answer_message(
    agent: HostedAgent, sessions: Sessions, arguments: dict[str, Any], request: McpToolRequest, tasks: McpTasks | None
) -> MessageResult:
    """Return the agent's answer, or the reason why there is none, or the questions of the call, or its task.

    Args:
        agent: answers.
        sessions: of this process.
        arguments: of the tool, unchecked.
        request: the caller, and the receiver of notifications.
        tasks: of the gateway; None if it has no database.

    Raises:
        MCPError: the agent requires a client that accepts tasks; or the request continues a call with a state or
            answers that cannot be used.
    """
    becomes_task = tasks is not None and tasks.accepts(agent, request)
    if request.round.state is not None:
        return await _continue_call(agent, sessions, arguments, request, tasks)
    waiting: WaitingCall | None = None  # a call of a client that answers questions by repeating its request
    with request.of(agent, arguments) as asked:
        with asked.answering():
            call = await asked.decoded(lambda call: parsed(call, arguments, agent))
            if tasks is not None and becomes_task:
                waiting = tasks.call(agent, call, request.round.modes, arguments)
                asked.ended(await _reply_or_questions(sessions, request, waiting))
            elif request.round.modes:
                waiting = WaitingCall(agent, call, request.round.modes)
                asked.ended(await _reply_or_questions(sessions, request, waiting))
            else:
                events = EventQueue(request.options)
                one = RunningCall(agent, call, events, request.options, request.asker)
                asked.ended(await _reply(sessions, request, one, events))
        return _result_of(asked, sessions, waiting)


async def _reply(sessions: Sessions, request: McpToolRequest, call: RunningCall, events: EventQueue) -> Reply:
    """Return the agent's reply, after all notifications were sent.

    Raises:
        CallFailedError: `cancelled`, or `stopped` because the gateway is stopping.
    """
    work = call.begin()
    with sessions.cancellations.listening(request.key, call.call, work.cancel):
        try:
            await request.notifications(call.agent, events).send_until(work)
        except asyncio.CancelledError:
            work.cancel()
            raise
    return call.result_of(work)


async def _continue_call(
    agent: HostedAgent, sessions: Sessions, arguments: dict[str, Any], request: McpToolRequest, tasks: McpTasks | None
) -> MessageResult:
    """Return the result of a request that continues or ends a call; see `answer_message`.

    Raises:
        MCPError: its state or its answers cannot be used.
    """
    calls, round_ = sessions.waiting_calls, request.round
    continued = await _continued(calls, round_, agent.name)
    waiting, resumed = continued.waiting, continued.resumed

    async def decode(asked: Call) -> Call:
        if continued.error is not None:
            raise continued.error
        if resumed is None:
            return cast("WaitingCall", waiting).call  # without an error, a call waits or is resumed
        call = await parsed(asked, arguments, agent)
        return replace(call, checkpoint=resumed.checkpoint, given=round_.answers)

    try:
        with request.of(agent, arguments, continued.call_id) as asked:
            with asked.answering():
                call = await asked.decoded(decode)
                if waiting is None and resumed is not None:
                    # The client has answered a question, so it can be asked.
                    modes = round_.modes or MODES
                    takes_task = tasks is not None and tasks.accepts(agent, request)
                    waiting = tasks.call(agent, call, modes, arguments) if tasks and takes_task else None
                    waiting = waiting or WaitingCall(agent, call, modes)
                asked.ended(await _reply_or_questions(sessions, request, cast("WaitingCall", waiting)))
            return _result_of(asked, sessions, waiting)
    finally:
        # A process that has just started may be busy, or its agent not ready: the client can repeat the request, also
        # if it has left meanwhile.
        if resumed is not None and (waiting is None or not waiting.has_begun):
            await calls.release(resumed.ticket)


async def _reply_or_questions(sessions: Sessions, request: McpToolRequest, waiting: WaitingCall) -> Reply:
    """Return the reply of a call that may continue in another request; `_ASKS` if it waits for that request.

    Raises:
        CallFailedError: `cancelled`, or `stopped` because the gateway is stopping.
    """
    waiting.attach(request.options)
    waiting.declares_tasks = request.round.declares_tasks
    work = waiting.work = waiting.work or waiting.begin()
    until: asyncio.Task[Any] = work if request.round.ends else waiting.until_asked(work)
    with sessions.cancellations.listening(request.key, waiting.call, work.cancel):
        try:
            await request.notifications(waiting.agent, waiting.events).send_until(until)
        except asyncio.CancelledError:
            until.cancel()
            work.cancel()
            raise
        finally:
            if work.done() or work.cancelling():
                waiting.work = None  # a cancelled task has the frames of the call, which refer to the task
    if waiting.created is not None:
        waiting.leave()
        return _ASKS
    if not work.done():
        waiting.leave()
        if not waiting.agent.calls.draining or waiting.can_be_resumed:
            return _ASKS
        work.cancel()
        await asyncio.wait({work})  # only then the tokens that the call has used are known
    return waiting.result_of(work)


def _result_of(request: CallRequest, sessions: Sessions, waiting: WaitingCall | None) -> MessageResult:
    """Return the result of a call, its task, or its questions if it waits for its next request."""
    if waiting is not None and waiting.created is not None:
        return dict(waiting.created)
    if request.reply is _ASKS and waiting is not None:
        return questions_result(waiting, sessions.waiting_calls.detach(waiting))
    return call_result(request, request.agent.trace_url(request.call))


@dataclass(frozen=True, slots=True)
class _Continued:
    """The call that a request continues: one that waits in this process, or one to resume; else an error.

    `call_id` is None if the result is of no known call.
    """

    call_id: str | None
    waiting: WaitingCall | None = None
    resumed: Checkpoint | None = None
    error: GatewayError | None = None


async def _continued(calls: WaitingCalls, round_: Round, agent: str) -> _Continued:
    state = round_.state or ""
    call_id = state.split(".", 3)[1]
    try:
        if not calls.is_elsewhere(state):
            return _Continued(call_id, waiting=await _waiting(calls, round_, agent))
        resumed = await _resumed(calls, round_)
    except StatesUnavailableError as error:
        return _Continued(None, error=error)
    except MCPError:
        if not round_.ends:
            raise
        return _Continued(call_id, error=cut_off(stopping=False))
    if round_.ends:
        return _Continued(call_id, error=CallFailedError(_MAY_WAIT, reason="cancelled"))
    if resumed is None:
        return _Continued(None, error=CallRefusedError(ENDED_WITH_PROCESS, reason="call_again"))
    return _Continued(call_id, resumed=resumed)


async def _waiting(calls: WaitingCalls, round_: Round, agent: str) -> WaitingCall:
    """Answer the questions of the call of this process that a request continues, and return it.

    Raises:
        MCPError: the state was used, or its call has ended, or an answer does not fit.
        StatesUnavailableError: it is not known now whether the state was used.
    """
    call = calls.find(round_.state or "")
    if call is None or call.call.agent != agent:
        raise _no_such_call()
    try:
        await calls.attach(call, _fitting(call, round_.answers))
    except LookupError as error:
        raise _no_such_call() from error
    except StatesUnavailableError as error:
        if not round_.ends:
            raise
        calls.remove(call)  # it ends here in any case
        raise _no_such_call() from error
    if round_.ends:
        call.give_up()
    return call


async def _resumed(calls: WaitingCalls, round_: Round) -> Checkpoint | None:
    """Return where the call of an ended process goes on; None if it cannot be resumed.

    Raises:
        MCPError: the state was used, or its process was not asked for the call.
        StatesUnavailableError: it is not known now whether the state was used.
    """
    state, missing = round_.state or "", round_.not_there
    if missing is None or state.partition(".")[0] != missing.process:  # the client has changed the name
        raise _no_such_call()
    if missing.is_lost:
        return None
    try:
        return await calls.resume(state)
    except LookupError as error:
        raise _no_such_call() from error


def _fitting(call: WaitingCall, given: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return the answers to open questions of a call."""
    answers = {id_: given[id_] for id_ in call.open if id_ in given}
    for id_, answer in answers.items():
        if (why := call.open[id_].misfit(answer)) is not None:
            raise MCPError(INVALID_PARAMS, f"inputResponses: in '{id_}', {why}. Send another answer with this state.")
    return answers


def _no_such_call() -> MCPError:
    """Return the protocol's error for a state that was used or whose call has ended."""
    return MCPError(INVALID_PARAMS, "Invalid or expired requestState", {"reason": "invalid_request_state"})
