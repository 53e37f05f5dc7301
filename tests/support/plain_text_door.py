"""An example of a door: agents over plain text. It is no part of the product; docs/develop/door.md explains it.

`POST /text/NAME` with a message streams the agent's text. A question ends the response with `? /text/NAME/ID QUESTION`.
`POST` there with the answer, the first field of the form, continues the call; an empty one declines. A call that fails
after its first text ends the response with `! SENTENCE`.
"""

import asyncio
import re
from contextlib import suppress
from dataclasses import replace
from math import inf

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pallas_gateway.calls.call import Call, Message, Reply
from pallas_gateway.calls.events.answer_text import AnswerSink, AnswerText
from pallas_gateway.calls.events.events import TextDelta
from pallas_gateway.calls.events.queue import EventQueue, StreamOptions
from pallas_gateway.calls.forms import fields_of
from pallas_gateway.calls.questions import Answer
from pallas_gateway.core.call_request import requested
from pallas_gateway.core.hosted_agent import HostedAgent
from pallas_gateway.core.waiting_calls import WaitingCall
from pallas_gateway.doors.api.base import Api
from pallas_gateway.doors.api.errors import ApiError, not_allowed, response_to
from pallas_gateway.doors.http import access, bodies, refusals
from pallas_gateway.errors import CallRefusedError, GatewayError
from pallas_gateway.identity.caller import CALLER_KEY
from pallas_gateway.identity.decision import Action
from pallas_gateway.long_responses import LongResponse

PATH = re.compile(r"/text/([^/]+)(?:/([0-9a-f]+\.[0-9a-f]+-[0-9]+))?")
HEADERS = {b"content-type": b"text/plain; charset=utf-8", b"cache-control": b"no-store"}
ASKS = Reply((), "input_required")  # in place of the reply of a call that waits for its next request


class TextCall(WaitingCall):
    """A call of this door; `said` is its text so far, over all its requests."""

    def __init__(self, agent: HostedAgent, call: Call) -> None:
        super().__init__(agent, call, modes=["form"])
        self.said, self.events = AnswerText(), EventQueue(StreamOptions(deltas=True), may_miss=())
        self.sink, self.options = AnswerSink(self.said, self.events), self.events.options


class TextDoor(Api):
    """The ASGI app of this door. Refusals have the form of `/api/v1`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.respond(self._accepted, scope, receive, send)

    async def _accepted(self, http: Request) -> ASGIApp:
        gateway, [(name, id_)] = self._gateway, PATH.findall(http.scope["path"])
        http.scope[CALLER_KEY] = await access.caller_of(gateway, http.scope)
        if (agent := access.agent_for(gateway, http.scope, name, Action.RUN, shown=None)) is None:
            return refusals.absent(gateway, http.scope, name)
        if http.method != "POST":
            return not_allowed(["POST"])
        if gateway.calls.draining:
            return refusals.draining()
        if (body := await bodies.read(http, gateway.configuration.deployment.gateway.max_body_bytes)) is None:
            raise ApiError("The body is too large.", reason="body_too_large")
        text = body.decode(errors="replace").strip()

        async def called(scope: Scope, receive: Receive, send: Send) -> None:
            out, response = LongResponse(receive, send, headers=HEADERS, silence_seconds=inf, comment=bytes), None
            async with out.watched():
                response = await self._call(http, agent, text, id_, out)
            if response is not None:
                await response(scope, receive, send)

        return called

    async def _call(self, http: Request, agent: HostedAgent, text: str, id_: str, out: LongResponse) -> Response | None:
        """Decode a request, follow its call, encode the outcome."""
        caller, calls = http.scope[CALLER_KEY], self._gateway.sessions.waiting_calls
        asking = await self._continued(id_, agent.name, caller.account, text) if id_ else None

        async def decode(asked: Call) -> Call:
            if not asking and not text:
                raise CallRefusedError("The body has no text.", reason="bad_input")
            return asking.call if asking else replace(asked, message=Message("user", text))

        with requested(agent, caller, http.headers, call_id=asking.call.call_id if asking else None) as request:
            with request.answering():
                decoded = await request.decoded(decode)
                call = asking or TextCall(agent, decoded)
                request.ended(await follow(call, out))
            outcome, last = request.outcome, ""
            if request.reply is ASKS:
                _, call_id, ticket, _ = calls.detach(call).split(".", 3)
                [question, *_] = call.open.values()
                last = f"\n? /text/{agent.name}/{call_id}.{ticket} {question.message}"
            elif isinstance(outcome, GatewayError):
                if not out.has_begun:
                    return response_to(outcome)
                last = f"\n! {outcome}"
            await out.end(last.encode("utf-8", "replace"))
            return None

    async def _continued(self, id_: str, agent: str, account: str, text: str) -> TextCall:
        """Answer the first question of a call that waits, and return the call."""
        calls = self._gateway.sessions.waiting_calls
        call, given = calls.find(f".{id_}."), {}
        if isinstance(call, TextCall) and (call.call.agent, call.call.caller.account) == (agent, account):
            for question in [*call.open.values()][:1]:  # none if another request has ended the call
                form = dict.fromkeys([*fields_of(question.schema or {})][:1], text)
                given[question.id] = answer = Answer("accepted", form) if text else Answer("declined")
                if (why := question.misfit(answer)) is not None:
                    raise ApiError(f"The answer does not fit: {why}. Send another one here.")
            with suppress(LookupError):
                await calls.attach(call, given)
                return call
        raise ApiError("No call waits here for an answer.", reason="not_found")


async def follow(call: TextCall, out: LongResponse) -> Reply:
    """Send the text as it comes; return the reply, or `ASKS` at a question. The call ends if the client leaves."""
    call.attach(call.options)
    work = call.work = call.work or call.begin()
    until = call.until_asked(work)
    until.add_done_callback(lambda _: call.events.wake())
    try:
        while not until.done() or len(call.events):
            if isinstance(event := call.events.next(), TextDelta):
                await out.write(event.text.encode("utf-8", "replace"))
            else:
                await call.events.wait()
    except BaseException:
        until.cancel()
        call.abandon()
        raise
    if not work.done() and not call.agent.calls.draining:
        return ASKS
    call.abandon()
    await asyncio.wait({work})
    rest, reply = call.said.ending(call.result_of(work))
    if rest:
        await out.write(rest.encode("utf-8", "replace"))
    return reply
