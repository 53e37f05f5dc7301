"""One answer of an agent, streamed or as one body: the same loop for chat completions and responses."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import JSONResponse

from pallas_gateway.calls.events.answer_text import LIVE_SECONDS, AnswerSink, AnswerText, text_of
from pallas_gateway.calls.events.events import TextDelta
from pallas_gateway.calls.events.queue import EventQueue, StreamOptions
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.doors.openai.answers import Completion
from pallas_gateway.doors.openai.errors import OpenAiError, of_failure, of_refusal
from pallas_gateway.doors.openai.requests import AgentRequest, chat_request, value_in, wants_json
from pallas_gateway.doors.openai.responses import ResponseAnswers, response_request
from pallas_gateway.errors import CallFailedError, GatewayError
from pallas_gateway.tasks import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.long_responses import ServerSentEvents
    from pallas_gateway.tasks import Parts


type Answers = Completion | ResponseAnswers
"""The bodies of one request's response: `whole`, or the documents of a stream."""


class Form(NamedTuple):
    """What differs between the two APIs: how a request is read, and how its answer is written."""

    read: Callable[..., Parts[AgentRequest]]
    answers: Callable[[str, str, int, AgentRequest], Answers]


CHAT_COMPLETION = Form(chat_request, Completion)
RESPONSE = Form(response_request, ResponseAnswers)


@dataclass(slots=True)
class Answering:
    """One request and its response.

    Attributes:
        form: of the request and the response.
        document: the request's body, not validated.
        http: scope, receive and send of the request.
        events: the response if it is a stream.
    """

    form: Form
    document: dict[str, Any]
    http: tuple[Scope, Receive, Send]
    events: ServerSentEvents
    _texts: list[str] = field(default_factory=list)
    _is_stream: bool = False
    _has_begun: bool = False
    _answers: Answers = field(init=False)
    _wants_json: bool = False

    async def respond(self, request: CallRequest) -> None:
        """Send the whole response."""
        with request.answering():
            call = await request.decoded(partial(self._decoded, request.agent))
            request.ended(await self._reply(RunningCall(request.agent, call)))
        await self._end(request)

    async def _decoded(self, agent: HostedAgent, asked: Call) -> Call:
        """Return the call with the content of the body; raises `BadRequestError`."""
        request = await in_parts(
            self.form.read(self.document, agent.settings, max_entries=agent.shared.max_history_entries)
        )
        self._wants_json = wants_json(request.parameters, agent.settings)
        self._answers = self.form.answers(asked.call_id, asked.agent, int(time()), request)
        self._is_stream = bool(value_in(self.document, "stream", bool))
        return replace(asked, message=request.message, history=request.history, parameters=request.parameters)

    async def _reply(self, call: RunningCall) -> Reply:
        """Return the reply after sending or collecting its text: with a JSON response format only the last text.

        Raises:
            CallFailedError: the call was cut off, `stopped` or `cancelled`.
        """
        live = self._is_stream and not self._wants_json
        said, events = AnswerText(), EventQueue(StreamOptions(deltas=True), may_miss=())
        call.sink = AnswerSink(said, events)
        call.options = StreamOptions(deltas=live, text_seconds=LIVE_SECONDS)
        work = call.begin()
        work.add_done_callback(lambda _: events.close())
        try:
            if self._is_stream:
                self.events.keep_alive()
            async for event in events.events():
                if isinstance(event, TextDelta) and not self._wants_json:
                    await self._add(event.text)
            rest, reply = said.ending(call.result_of(work))
            if self._wants_json:
                rest = text_of(reply) if reply.failure is None else ""
            if rest:
                await self._add(rest)
            return reply
        finally:
            work.cancel()  # the client has left

    async def _end(self, request: CallRequest) -> None:
        """Send the response, or its end. An error has its own status unless the response has begun."""
        outcome: Reply | OpenAiError | GatewayError = request.outcome
        if isinstance(outcome, CallFailedError):
            outcome = of_failure(outcome.reason, str(outcome))
        elif isinstance(outcome, GatewayError):
            outcome = of_refusal(outcome)
        has_begun = await self.events.unwatch()
        if self._is_stream and (has_begun or not isinstance(outcome, OpenAiError)):
            await self._end_stream(outcome)
        elif isinstance(outcome, OpenAiError):
            await outcome.response()(*self.http)
        else:
            await JSONResponse(self._answers.whole("".join(self._texts), outcome))(*self.http)

    async def _add(self, text: str) -> None:
        text = text.encode(errors="replace").decode()  # models write halves of surrogate pairs, which no JSON may hold
        if self._is_stream:
            await self._begin()
            await self._send(self._answers.more(text))
        else:
            self._texts.append(text)

    async def _end_stream(self, outcome: Reply | OpenAiError) -> None:
        if isinstance(outcome, OpenAiError):
            await self._send(*self._answers.failed(outcome))
        else:
            await self._begin()
            await self._send(*self._answers.last(outcome))
        await self.events.data("[DONE]")
        await self.events.end()

    async def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            await self._send(*self._answers.first())

    async def _send(self, *documents: dict[str, Any]) -> None:
        for document in documents:
            await self.events.data(json.dumps(document, separators=(",", ":")), event=document.get("type"))
