"""One chat completion: a call of an agent, told to its client as it goes on or at its end."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from pallas_gateway.agent_server.tools import call_meta
from pallas_gateway.agents.call_log import records_of
from pallas_gateway.agents.event_stream import begun
from pallas_gateway.calls.call import Call, Message
from pallas_gateway.calls.events import Replied, TextDelta, text_of
from pallas_gateway.errors import CallFailedError, GatewayError
from pallas_gateway.identity.secret import bearer_of
from pallas_gateway.telemetry import traces
from pallas_gateway.web.connection import ServerSentEvents
from pallas_gateway.web.openai_api.answers import Answers
from pallas_gateway.web.openai_api.errors import ApiError, BadRequestError, of_failure, of_refusal
from pallas_gateway.web.openai_api.requests import chat_request, conversation_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from pallas_gateway.agents.hosted_agent import HostedAgent
    from pallas_gateway.calls.call import Reply
    from pallas_gateway.calls.events import Event
    from pallas_gateway.calls.nesting import RunningCalls
    from pallas_gateway.gateway import Gateway
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.web.openai_api.requests import ChatRequest

    type OnText = Callable[[str], Awaitable[None]]
    type Outcome = Reply | ApiError

_log = logging.getLogger("pallas.openai_api")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for an agent that its caller may run; `document` is its body, and nothing of it was looked at yet."""

    agent: HostedAgent
    document: dict[str, Any]
    caller: Caller
    request_id: str
    parent: Call | None

    def call(self) -> Call:
        """What is known of the call by now."""
        return Call(
            self.agent.name,
            Message("user", ""),
            conversation_id=conversation_of(self.document),
            caller=self.caller,
            nesting=self.parent.nesting + 1 if self.parent else 0,
            parent_call_id=self.parent.call_id if self.parent else None,
            trace_id=traces.trace_id(),
            call_id=self.request_id,
        )


async def answer(gateway: Gateway, asked: Asked, scope: Scope, receive: Receive, send: Send) -> None:
    """Make the call that was asked for and send its answer, or what is wrong with the request."""
    headers, started = Headers(scope=scope), monotonic()
    with traces.call(asked.agent.name, headers, mcp_method=None) as span:
        call = asked.call()
        with records_of(call, bearer_of(headers.get("authorization"))):
            chat = _understood(gateway, asked, call)
            outcome, response = (chat, chat.response()) if isinstance(chat, ApiError) else await chat.respond(send)
            if response is not None:
                await response(scope, receive, send)
        facts = _facts(call, outcome, seconds=monotonic() - started)
        traces.tell_result(span, facts, failed=isinstance(outcome, ApiError))


def _understood(gateway: Gateway, asked: Asked, call: Call) -> Chat | ApiError:
    try:
        request = chat_request(asked.document, asked.agent.settings, max_entries=asked.agent.max_history_entries)
    except BadRequestError as error:
        asked.agent.refuse(call, error)
        return of_refusal(error)
    whole = replace(
        call,
        message=request.message,
        history=request.history,
        parameters=request.parameters,
    )
    silence_seconds = gateway.configuration.deployment.gateway.heartbeat_seconds
    return Chat(asked.agent, whole, request, gateway.running, silence_seconds)


@dataclass(frozen=True, slots=True)
class Chat:
    """A request that was understood. No silence of its stream is longer than `silence_seconds`."""

    agent: HostedAgent
    call: Call
    request: ChatRequest
    running: RunningCalls
    silence_seconds: float

    async def respond(self, send: Send) -> tuple[Outcome, Response | None]:
        """Make the call; what came of it, and what is still to be sent."""
        answers = Answers(self.call.call_id, self.agent.name, int(time()), with_usage=self.request.include_usage)
        if not self.request.stream:
            return await self._whole(answers)
        stream = ServerSentEvents(send, silence_seconds=self.silence_seconds)
        return await self._stream(_StreamedAnswer(stream, answers))

    async def _whole(self, answers: Answers) -> tuple[Outcome, Response]:
        texts: list[str] = []

        async def keep(text: str) -> None:
            texts.append(text)

        outcome = await self._outcome(keep)
        if isinstance(outcome, ApiError):
            return outcome, outcome.response()
        return outcome, JSONResponse(answers.completion("".join(texts), outcome))

    async def _stream(self, answer: _StreamedAnswer) -> tuple[Outcome, Response | None]:
        """An error has its own status if nothing went out before it."""
        async with answer.stream.kept_alive():
            outcome = await self._outcome(answer.tell)
        if isinstance(outcome, ApiError) and not answer.stream.has_begun:
            return outcome, outcome.response()
        await answer.end(outcome)
        return outcome, None

    async def _outcome(self, tell: OnText) -> Outcome:
        """What the call comes to, its text told on the way."""
        live = self.request.stream and not self.request.wants_json
        try:
            async with begun(self.agent, self.call, self.running, live=live) as events:
                return await self._told(events, tell)
        except CallFailedError as failure:
            return of_failure(failure.reason, str(failure))
        except GatewayError as refusal:
            return of_refusal(refusal)
        except Exception:  # noqa: BLE001  the last line before the client: it gets a sentence, the log the traceback
            _log.exception("call failed")
            sentence = f"The gateway failed to answer; its log has the reason under {self.call.call_id}."
            return of_failure("internal_error", sentence)

    async def _told(self, events: AsyncIterator[Event], tell: OnText) -> Outcome:
        """Tell the text; where a program is to read it, that of the final answer alone."""
        is_for_people = not self.request.wants_json
        async for event in events:
            if isinstance(event, TextDelta) and is_for_people:
                await tell(event.text)
            elif isinstance(event, Replied):
                reply = event.reply
                reason = "deadline" if event.timed_out else reply.failure
                if reason is not None:
                    return of_failure(reason, text_of(reply))
                if not is_for_people:
                    await tell(text_of(reply))
                return reply
        raise AssertionError("the last event is what became of the call")


class _StreamedAnswer:
    """The chunks of one answer on their way to the client."""

    def __init__(self, stream: ServerSentEvents, answers: Answers) -> None:
        self.stream = stream
        self._answers = answers
        self._has_spoken = False

    async def tell(self, text: str) -> None:
        """Send more of the answer."""
        await self._speak()
        await self._send(self._answers.more(text))

    async def end(self, outcome: Outcome) -> None:
        """Send how it ended, and the end of the stream."""
        if isinstance(outcome, ApiError):
            await self._send(outcome.body())
        else:
            await self._speak()
            for chunk in self._answers.last(outcome):
                await self._send(chunk)
        await self.stream.data("[DONE]")
        await self.stream.end()

    async def _speak(self) -> None:
        if not self._has_spoken:
            self._has_spoken = True
            await self._send(self._answers.first())

    async def _send(self, document: dict[str, Any]) -> None:
        await self.stream.data(json.dumps(document, separators=(",", ":")))


def _facts(call: Call, outcome: Outcome, *, seconds: float) -> dict[str, Any]:
    """The facts of the call, for its span."""
    if isinstance(outcome, ApiError):
        return call_meta(call, stop_reason=outcome.code or "error", seconds=seconds)
    return call_meta(call, stop_reason=outcome.stop_reason, seconds=seconds, reply=outcome)
