"""`POST /api/v1/agents/try`: says something to an agent as a definition makes it that is not saved.

The rights and checks are those of saving, the answer is that of a chat in a thread. Nothing is kept: each request
starts the agent, which is gone with its answer, and the client sends what was said before.
"""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from http import HTTPStatus
from itertools import chain, count
from typing import TYPE_CHECKING, Any, override

from starlette.responses import Response

from pallas_gateway.calls.events.answer_text import LIVE_SECONDS
from pallas_gateway.calls.events.queue import StreamOptions
from pallas_gateway.calls.permit import NO_PERMIT, CallEnd
from pallas_gateway.calls.questions import MODES
from pallas_gateway.core.call_request import requested
from pallas_gateway.core.offers import CallEntry, CallLimits
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.doors.api import requests as api_requests
from pallas_gateway.doors.api.base import operation
from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.doors.api.models import parsed
from pallas_gateway.doors.http import access, refusals
from pallas_gateway.errors import STOPPING, AgentStartError, CallFailedError
from pallas_gateway.features.definitions.feature import DefinitionsFeature
from pallas_gateway.features.definitions.http import PREFIX, requests
from pallas_gateway.features.definitions.http.api import AgentsApi
from pallas_gateway.features.definitions.http.models import Options
from pallas_gateway.features.definitions.http.rights import RightsGate
from pallas_gateway.features.definitions.merging import with_agent
from pallas_gateway.features.definitions.records import InvalidDefinitionError, Place
from pallas_gateway.features.definitions.rules import taker_of
from pallas_gateway.features.threads.feature import ThreadsFeature
from pallas_gateway.features.threads.http import models
from pallas_gateway.features.threads.http.chat import refuse_misfit
from pallas_gateway.features.threads.http.live_turn import LiveExchange
from pallas_gateway.features.threads.http.requests import given_answers, with_message
from pallas_gateway.features.threads.http.responses import ExchangeResponse
from pallas_gateway.identity.decision import Action
from pallas_gateway.identity.grants import CREATE_AGENTS, EDIT_AGENTS
from pallas_gateway.long_responses import ServerSentEvents
from pallas_gateway.tasks import in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.calls.questions import Answer, Question
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.features.definitions.records import StoredAgent
    from pallas_gateway.features.threads.http.answers import Json
    from pallas_gateway.features.threads.http.live_turn import LiveExchanges
    from pallas_gateway.features.tries.feature import TriesFeature
    from pallas_gateway.identity.caller import Caller

LONGEST_SECONDS = 600.0
"""Of an answer, with the time of its questions."""
UNNAMED = "unsaved"
"""The name of a new agent that has none yet, with a number where an agent has it."""
_NUMBER = 1  # of the one turn of a try, by which its process finds it
_CHAT: dict[str, Any] = {"query": None, "body": models.TryRequest, "answer": models.Outcome, "events": models.Event}
_CHAT |= {"says": "The answer. Only clients of events are asked questions.", "errors": (409, 422, 429, 502, 504)}


class TriesApi(AgentsApi):
    """The routes of tries."""

    def __init__(self, gateway: Gateway, _feature: TriesFeature) -> None:
        agents, threads = gateway.find(DefinitionsFeature), gateway.find(ThreadsFeature)
        if agents is None or threads is None:
            raise LookupError("tries need agents as data and threads")
        super().__init__(gateway, agents)
        self._live = threads.live

    @operation(
        "POST", f"{PREFIX}/try", "tryNewAgent", "Say something to a new agent without saving it.",
        requires="`create:agents`", **_CHAT,
    )  # fmt: skip
    async def _try_new(self, request: Request) -> ASGIApp:
        caller = await access.caller_of(self._gateway, request.scope)
        RightsGate(self._gateway, request).require(Action.CREATE, caller, None)
        self._refuse_unmanaged()
        api_requests.owner_of(caller)

        async def check(definition: Json) -> StoredAgent:
            requests.take_own(definition, caller)
            taken = {*self._gateway.agents, *await self._definitions.owners()}
            name = definition.pop("name", None) or _free_name(taken)
            editor = self._editor(caller, await self._rights_of(caller), None)
            return await self._definitions.create(name, definition, editor, dry_run=True)

        return await self._trying(request, caller, None, check)

    @operation(
        "POST", f"{PREFIX}/{{name}}/try", "tryAgent",
        "Say something to an agent with another definition, without saving it.",
        requires="the owner, or `edit:agents`", **_CHAT,
    )  # fmt: skip
    async def _try(self, request: Request, name: str) -> ASGIApp:
        caller = (await self._to_change(request, name, Action.EDIT)).caller

        async def check(definition: Json) -> StoredAgent:
            requests.take_name(definition, name)
            definition.pop("owner", None)
            editor = self._editor(caller, await self._rights_of(caller), None, Action.EDIT)
            return await self._definitions.replace(name, definition, editor, expected=None, dry_run=True)

        return await self._trying(request, caller, name, check)

    @operation(
        "POST", f"{PREFIX}/try/{{try}}/answers", "answerTry", "Answer questions of an agent that is tried.",
        requires="the caller that tries it", query=None, body=models.GivenAnswers, status=HTTPStatus.NO_CONTENT,
        says="The stream of the try goes on.", errors=(422,),
    )  # fmt: skip
    async def _answers(self, request: Request, try_id: str) -> ASGIApp:
        caller = await access.caller_of(self._gateway, request.scope)
        if not caller.authenticated and not caller.grants.everything and not caller.grants.names:
            raise refusals.RefusedError(refusals.without_token(self._gateway, request.scope))
        read = await self.read(request)

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            process, elsewhere = try_id.partition(".")[0], self._gateway.elsewhere
            if await elsewhere.answered_by(process, request, read, send, if_cut=bytes):
                return
            turn: Any = self._live.find(try_id, _NUMBER)
            if not isinstance(turn, _Try) or turn.caller.owner != caller.owner:
                raise ApiError("There is no such try, or it has ended.", reason="not_found")
            turn.give(given_answers(parsed(models.GivenAnswers, api_requests.json_object(read))))
            await Response(status_code=HTTPStatus.NO_CONTENT)(scope, receive, send)

        return respond

    async def _trying(
        self, request: Request, caller: Caller, name: str | None, check: Callable[[Json], Awaitable[StoredAgent]]
    ) -> ASGIApp:
        """Respond by the agent of the definition that `check` accepts; `name` is that of a stored agent."""
        gateway = self._gateway
        if gateway.calls.draining:
            raise ApiError(STOPPING, reason="stopping")
        is_stream, body = api_requests.wants_events(request), await self.body(request, models.TryRequest)
        entry = CallEntry(secrets.token_hex(8), name or "", caller.principal, caller.account, action="try")
        about, grant = {"caller": caller.principal, "address": caller.address}, EDIT_AGENTS if name else CREATE_AGENTS

        async def answer(response: ExchangeResponse) -> None:
            tried = await check(requests.without_shown_only(body.definition))
            configuration = with_agent(gateway.configuration, tried)
            async with gateway.trying(configuration, tried.name) as agent:
                by = {"agent": tried.name, "grant": caller.grants.deciding(grant, tried.name)}
                gateway.trail.record("try", "accepted", {**about, **by})
                owner = caller.among(configuration.stored_owners)
                await _Try(gateway, self._live, agent, owner, body, response).respond(request)

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            silence_seconds = gateway.configuration.deployment.gateway.heartbeat_seconds
            events = ServerSentEvents(receive, send, silence_seconds=silence_seconds)
            async with events.watched():
                with self._noting_refusals(caller, "try", name, Options()):
                    limits = gateway.find(CallLimits)
                    permit = await limits.begin(entry) if limits is not None else NO_PERMIT
                    try:
                        await answer(ExchangeResponse((scope, receive, send), events, is_stream))
                    except AgentStartError as error:
                        raise InvalidDefinitionError(
                            [Place(*one) for one in error.places or [("", str(error))]]
                        ) from error
                    finally:
                        permit.end(CallEnd("ok", "try", 0.0))

        return respond


def _free_name(taken: Collection[str]) -> str:
    names = chain((UNNAMED,), (f"{UNNAMED}-{number}" for number in count(2)))
    return next(name for name in names if taker_of(name, taken) is None)


class _Try(LiveExchange):
    """A message to an agent that is tried, its answer, and its questions to `caller`; nothing of it is stored."""

    kind = "try"

    def __init__(  # noqa: PLR0913, PLR0917  what a request says of it
        self,
        gateway: Gateway,
        live: LiveExchanges,
        agent: HostedAgent,
        caller: Caller,
        body: models.TryRequest,
        response: ExchangeResponse,
    ) -> None:
        try_id = f"{gateway.elsewhere.process}.{secrets.token_hex(16)}"
        super().__init__(try_id, is_first=True, as_assistant=body.assistant_stream)
        self.caller = caller
        self._gateway, self._live, self._agent, self._body, self._response = gateway, live, agent, body, response
        self._waiting: dict[str, asyncio.Future[Answer]] = {}

    @override
    def about(self) -> Json:
        return {"tryId": self.thread_id} if self.number is not None else {}

    async def respond(self, request: Request) -> None:
        """Send the whole response."""
        with requested(self._agent, self.caller, request.headers, api="try") as call:
            with call.answering():
                call.ended(await self._reply(await call.decoded(self._decoded)))
            await self._response.end(call, self)

    async def _decoded(self, asked: Call) -> Call:
        most_bytes = self._gateway.configuration.deployment.gateway.max_message_bytes
        call, skipped = await in_parts(with_message(asked, self._body, self._agent, most_bytes))
        skipped.warn(call)
        return call

    async def _reply(self, call: Call) -> Reply:
        """Return the reply; the call ends with its client, and after its time."""
        live, response = self._live, self._response
        self.on_admitted = partial(live.stored, self, _NUMBER)
        live.begin(self, self._answered(call))
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                return await (self.stream(response.events) if response.is_stream else self.reply())
        except TimeoutError:
            why = f"An agent that is tried is gone after {LONGEST_SECONDS / 60:.0f} minutes. Send the message again."
            raise CallFailedError(why, reason="deadline") from None
        finally:
            await self.cancel()
            self.on_admitted = lambda: None  # it refers to this turn

    async def _answered(self, call: Call) -> Reply:
        is_stream = self._response.is_stream
        options, asker = StreamOptions(deltas=is_stream, text_seconds=LIVE_SECONDS), _Asker(self, is_stream)
        rest, reply = self.said.ending(await RunningCall(self._agent, call, self, options, asker).answered())
        self.add_text(rest)
        return reply

    async def answer_to(self, question: Question) -> Answer:
        """Return the answer of the caller."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[question.id] = answer
        self.ask(question)
        try:
            return await answer
        finally:
            del self._waiting[question.id]
            self.close(question.id, "cancel" if answer.cancelled() else answer.result().action)

    def give(self, given: Mapping[str, Answer]) -> None:
        """Answer questions by their ids, all or none.

        Raises:
            GatewayError: one is not open, or its answer does not fit.
        """
        for question_id, answer in given.items():
            refuse_misfit(question_id, self.questions.get(question_id), answer)
        for question_id, answer in given.items():
            del self.questions[question_id]
            self._waiting[question_id].set_result(answer)


class _Asker:
    """Puts questions to the client of a try, if it takes events."""

    client_may_leave = False

    def __init__(self, turn: _Try, is_stream: bool) -> None:
        self.modes = MODES if is_stream else ()
        self._turn = turn

    async def put(self, question: Question) -> Answer:
        return await self._turn.answer_to(question)
