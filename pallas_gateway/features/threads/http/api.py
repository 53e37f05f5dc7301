"""`/api/v1`: routes, and the access to each."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from pallas_gateway.calls.asking.elsewhere import NOT_THERE_KEY
from pallas_gateway.calls.permit import NO_PERMIT, CallEnd
from pallas_gateway.core.call_books import note_end_of_task
from pallas_gateway.core.call_request import requested
from pallas_gateway.core.offers import CallEntry, CallLimits
from pallas_gateway.doors.api import requests as api_requests
from pallas_gateway.doors.api.base import Api, operation
from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.doors.api.models import parsed
from pallas_gateway.doors.api.requests import owner_of
from pallas_gateway.doors.http import access, refusals
from pallas_gateway.doors.http.json_pieces import JsonInPieces
from pallas_gateway.errors import STOPPING, CallLimitedError
from pallas_gateway.features.threads.http import answers, models, requests
from pallas_gateway.features.threads.http.chat import GivenAnswers, NewExchange
from pallas_gateway.features.threads.http.responses import ExchangeResponse, last_events_of_abandoned
from pallas_gateway.features.threads.http.stored_turn import turn_in
from pallas_gateway.features.threads.http.turn_call import ContinuedExchanges, Services
from pallas_gateway.features.threads.records import ThreadNotFoundError
from pallas_gateway.identity.caller import CALLER_KEY
from pallas_gateway.identity.decision import Action
from pallas_gateway.long_responses import ServerSentEvents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from pallas_gateway.calls.asking.elsewhere import NotThere
    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.core.offers import Action as ActionOfLimits
    from pallas_gateway.features.threads.feature import ThreadsFeature
    from pallas_gateway.features.threads.records import ThreadRecord
    from pallas_gateway.identity.caller import Caller

_OWNER, _RUN = "the thread's owner, with `run`", "`run` of the agent"


class ThreadsApi(Api):
    """The routes of threads."""

    def __init__(self, gateway: Gateway, feature: ThreadsFeature) -> None:
        super().__init__(gateway)
        self._threads, self._live = feature.threads, feature.live
        ContinuedExchanges(gateway, self._threads, self._services)

    @operation(
        "GET", "/api/v1/agents/{name}/threads", "listThreads",
        "The caller's threads with an agent, the one last changed first.", requires=_RUN,
        query=models.ThreadsQuery, answer=models.Threads, says="One page.", errors=(429,),
    )  # fmt: skip
    async def _list_threads(self, request: Request, name: str, asked: models.ThreadsQuery) -> Response:
        wanted = requests.wanted_threads(asked)
        caller, agent = await self._admitted(request, name)
        async with self._counted(caller, agent.name, "search" if wanted.search else None):
            page = await self._threads.store.threads_of(owner_of(caller), (agent.name, agent.id), wanted)
        return JSONResponse(answers.thread_page(page))

    @operation(
        "GET", "/api/v1/threads", "listAllThreads",
        "The caller's threads with all agents, deleted ones too; last changed first.",
        requires="a token, or a grant",
        query=models.ThreadsQuery, answer=models.Threads, says="One page.", errors=(429,),
    )  # fmt: skip
    async def _all_threads(self, request: Request, asked: models.ThreadsQuery) -> Response:
        """The caller's threads with all agents that it may run, and with deleted ones."""
        wanted, caller = requests.wanted_threads(asked), await self._caller(request)
        owner, store = owner_of(caller), self._threads.store
        hosted = {(agent.name, agent.id) for agent in self._gateway.agents.values()}
        places = hosted | {(name, "") for name in await store.file_agents_of(owner)}
        hidden = [place for place in places if not self._may_read(caller, *place)]
        async with self._counted(caller, "", "search" if wanted.search else None):
            page = await store.threads_except(owner, hidden, wanted)
        return JSONResponse(answers.thread_page(page))

    @asynccontextmanager
    async def _counted(self, caller: Caller, agent: str, action: ActionOfLimits | None) -> AsyncIterator[None]:
        """Count a search or a copy as a call, and do one at a time for an owner; None is neither.

        Raises:
            CallLimitedError: a rule of `gateway.limits` refuses it.
            DatabaseBusyError: others of the owner take too long.
        """
        if action is None:
            yield
            return
        entry = CallEntry(secrets.token_hex(8), agent, caller.principal, caller.account, action=action)
        try:
            permit = await limits.begin(entry) if (limits := self._gateway.find(CallLimits)) is not None else NO_PERMIT
        except CallLimitedError as refused:
            facts = {"caller": caller.principal, "address": caller.address, "agent": agent, "api": "threads"}
            why = {"call_id": entry.call_id, "rule": refused.rule, "reason": refused.reason}
            self._gateway.trail.record(action, "refused", {**facts, **why})
            raise
        try:
            async with self._threads.long_work(owner_of(caller)):
                yield
        finally:
            permit.end(CallEnd("ok", action, 0.0))

    @operation(
        "POST", "/api/v1/agents/{name}/threads", "createThread", "A new thread.", requires=_RUN,
        query=None, body=models.NewThread, body_required=False, answer=models.Thread, status=HTTPStatus.CREATED,
        says="The thread.",
    )  # fmt: skip
    async def _new_thread(self, request: Request, name: str) -> Response:
        caller, agent = await self._admitted(request, name)
        title = (await self.body(request, models.NewThread)).title
        thread = await self._threads.store.create(owner_of(caller), agent.name, title, agent_id=agent.id)
        return JSONResponse(answers.thread(thread), status_code=201)

    @operation(
        "PATCH", "/api/v1/threads/{id}", "renameThread",
        "Give a thread another title, or none (null). Without `title` it becomes the one last changed.",
        requires=_OWNER, body=models.NewThread, body_required=False, answer=models.Thread,
        says="The thread.",
    )  # fmt: skip
    async def _rename(self, request: Request, thread_id: str) -> Response:
        thread = await self._changing(request, thread_id)
        body, changes = await self.body(request, models.NewThread), self._threads.changes
        renames = "title" in body.model_fields_set
        changed = await (changes.rename(thread.id, body.title) if renames else changes.touch(thread.id))
        return JSONResponse(answers.thread(changed))

    @operation(
        "POST", "/api/v1/threads/{id}/fork", "forkThread", "Copy a thread, up to one of its turns, to a new thread.",
        requires=_OWNER, body=models.Fork, body_required=False, answer=models.Thread,
        status=HTTPStatus.CREATED, says="The new thread.", errors=(409, 429),
    )  # fmt: skip
    async def _fork(self, request: Request, thread_id: str) -> Response:
        caller, thread = await self._owned(request, thread_id)
        last = (await self.body(request, models.Fork)).turns
        async with self._counted(caller, thread.agent, "copy"):
            copy = await self._threads.changes.fork(thread.id, last)
        return JSONResponse(answers.thread(copy), status_code=201)

    @operation(
        "DELETE", "/api/v1/threads/{id}", "deleteThread", "Delete a thread, unless a message is being answered.",
        requires=_OWNER, status=HTTPStatus.NO_CONTENT, says="It is not there any more.",
        errors=(409,),
    )  # fmt: skip
    async def _remove(self, request: Request, thread_id: str) -> Response:
        thread = await self._changing(request, thread_id)
        await self._threads.changes.remove(thread.id)
        return Response(status_code=204)

    @operation(
        "POST", "/api/v1/threads/{id}/cancel", "cancelTurn", "End the call of the latest turn, if it runs.",
        requires=_OWNER, body=Any, body_required=False, status=HTTPStatus.NO_CONTENT,
        says="No call runs.",
    )  # fmt: skip
    async def _cancel(self, request: Request, thread_id: str) -> ASGIApp:
        thread = await self._changing(request, thread_id)
        body = await self.read(request)
        api_requests.json_object(body)  # a page of another site can send an empty one only with a preflight

        async def cancel(scope: Scope, receive: Receive, send: Send) -> None:
            if (live := self._live.find(thread.id, thread.turns)) is not None:
                await live.cancel()
            ended = await self._threads.changes.cancel(thread.id)
            if ended is not None and ended.was_at_rest:
                note_end_of_task(self._gateway.trail, ended.task, "cancelled")
            await Response(status_code=204)(scope, receive, send)

        return self._at_its_process(thread, request, body, cancel)

    @operation(
        "PUT", "/api/v1/threads/{id}/turns/{turn}/feedback", "rateAnswer",
        "Rate the answer of a turn, in place of an earlier rating.", requires=_OWNER,
        body=models.NewFeedback, answer=models.Feedback, says="The rating.", errors=(409,),
    )  # fmt: skip
    async def _rate(self, request: Request, thread_id: str, number: str) -> Response:
        thread, turn = await self._changing(request, thread_id), requests.turn_number(number)
        body = await self.body(request, models.NewFeedback)
        rated = await self._threads.changes.rate(thread.id, turn, body.rating, body.note, for_owner=body.for_owner)
        return JSONResponse(answers.feedback(rated))

    @operation(
        "DELETE", "/api/v1/threads/{id}/turns/{turn}/feedback", "removeRating", "Remove the rating of a turn.",
        requires=_OWNER, status=HTTPStatus.NO_CONTENT, says="The turn has no rating.",
    )  # fmt: skip
    async def _unrate(self, request: Request, thread_id: str, number: str) -> Response:
        thread = await self._changing(request, thread_id)
        await self._threads.changes.unrate(thread.id, requests.turn_number(number))
        return Response(status_code=204)

    async def _changing(self, request: Request, thread_id: str) -> ThreadRecord:
        """Return the caller's own thread of that id; its agent may have been deleted."""
        return (await self._owned(request, thread_id))[1]

    @operation(
        "GET", "/api/v1/threads/{id}/messages", "listMessages",
        "The messages of a thread, the oldest first.",
        requires=_OWNER, query=models.MessagesQuery, answer=models.Messages, says="One page.",
    )  # fmt: skip
    async def _messages(self, request: Request, thread_id: str, asked: models.MessagesQuery) -> ASGIApp:
        _, thread = await self._owned(request, thread_id)
        store = self._threads.store
        page = await store.turns_of(thread.id, limit=asked.limit, after=asked.after, with_steps=asked.tools)
        return JsonInPieces(answers.message_page(page))

    @operation(
        "POST", "/api/v1/agents/{name}/chat", "chat", "Say something to an agent, in a thread or in a new one.",
        requires=_RUN, query=None, body=models.ChatRequest, answer=models.Answer, events=models.Event,
        errors=(409, 422, 429, 502, 504),
    )  # fmt: skip
    async def _chat(self, request: Request, name: str) -> ASGIApp:
        caller, agent = await self._admitted(request, name)
        if self._gateway.calls.draining:
            raise ApiError(STOPPING, reason="stopping")
        events = api_requests.wants_events(request)
        body = api_requests.json_object(await self.read(request))

        async def work(response: ExchangeResponse) -> None:
            with requested(agent, caller, request.headers, api="threads") as call:
                await NewExchange(agent, body, self._services(), response).respond(call)

        return self._responding(work, events=events, trace_url=agent.trace_url)

    @operation(
        "POST", "/api/v1/threads/{id}/answers", "giveAnswers",
        "Answer questions of the thread's latest turn, and go on with it.",
        requires=_OWNER, body=models.GivenAnswers, answer=models.Answer,
        says="The answer of the agent or its next questions.", events=models.Event, errors=(409, 422, 429, 502, 504),
    )  # fmt: skip
    async def _answers(self, request: Request, thread_id: str) -> ASGIApp:
        caller, thread = await self._owned(request, thread_id)
        agent = self._agent_for(request, caller, thread.agent)
        if agent.id != thread.agent_id:
            raise ThreadNotFoundError(f"no agent of thread '{thread_id}'")
        events, read = api_requests.wants_events(request), await self.read(request)
        body = parsed(models.GivenAnswers, api_requests.json_object(read))
        given = requests.given_answers(body)

        async def work(response: ExchangeResponse) -> None:
            missing: NotThere | None = request.scope.get(NOT_THERE_KEY)
            services = self._services()
            if may_be_taken := missing is not None and missing.is_lost:
                await self._threads.long_calls.note_end_of(missing.process)
            answering = GivenAnswers(agent, thread, given, body, services, response, may_be_taken=may_be_taken)
            with requested(agent, caller, request.headers, api="threads") as call:
                await answering.respond(call)

        return self._at_its_process(thread, request, read, self._responding(work, events=events))

    def _at_its_process(self, thread: ThreadRecord, request: Request, body: bytes, here: ASGIApp) -> ASGIApp:
        """Answer in the process that runs the call of the thread's latest turn, or by `here` in this one."""
        elsewhere, number = self._gateway.elsewhere, thread.turns

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            process = None
            if number and self._live.find(thread.id, number) is None:
                process = (await turn_in(self._threads.store, thread.id, number)).process
            if_cut = partial(last_events_of_abandoned, thread.id, number)
            if not await elsewhere.answered_by(process, request, body, send, if_cut=if_cut):
                await here(scope, receive, send)

        return respond

    def _services(self) -> Services:
        return Services(self._threads, self._live, self._gateway.configuration.deployment.gateway)

    async def _caller(self, request: Request) -> Caller:
        caller = await access.caller_of(self._gateway, request.scope)
        if not caller.authenticated and not caller.grants.everything and not caller.grants.names:
            raise refusals.RefusedError(refusals.without_token(self._gateway, request.scope))
        return caller

    async def _owned(self, request: Request, thread_id: str) -> tuple[Caller, ThreadRecord]:
        """Return the caller, and its own thread of that id, if it may run the agent or that has been deleted."""
        caller = await self._caller(request)
        if not models.THREAD_ID.fullmatch(thread_id):
            raise ThreadNotFoundError("no such thread")
        thread = await self._threads.store.find(thread_id, owner_of(caller))
        if not self._may_read(caller, thread.agent, thread.agent_id):
            if not caller.grants.may_view(thread.agent):
                raise ThreadNotFoundError(f"no thread '{thread_id}'")
            self._agent_for(request, caller, thread.agent)
        return caller, thread

    def _may_read(self, caller: Caller, name: str, id_: str) -> bool:
        """Return whether the caller may read and change its own threads with an agent.

        Its right to run an agent of the database ends with that agent; what was said there stays its own.
        """
        hosted = self._gateway.agents.get(name)
        is_gone = hosted is None or hosted.id != id_
        return caller.grants.may_run(name) or (bool(id_) and is_gone)

    def _responding(
        self, work: Callable[[ExchangeResponse], Coroutine[Any, Any, None]], *, events: bool, **options: Any
    ) -> ASGIApp:
        """Respond by `work`, which ends early when the client disconnects."""
        silence_seconds = self._gateway.configuration.deployment.gateway.heartbeat_seconds

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            stream = ServerSentEvents(receive, send, silence_seconds=silence_seconds)
            response = ExchangeResponse((scope, receive, send), stream, is_stream=events, **options)
            async with stream.watched():
                await work(response)

        return respond

    async def _admitted(self, request: Request, name: str) -> tuple[Caller, HostedAgent]:
        """Return the caller and the agent, if the caller may run it."""
        caller = await access.caller_of(self._gateway, request.scope, agent=name)
        return caller, self._agent_for(request, caller, name)

    def _agent_for(self, request: Request, caller: Caller, name: str) -> HostedAgent:
        agent = access.agent_for(self._gateway, {**request.scope, CALLER_KEY: caller}, name, Action.RUN, shown=name)
        if agent is None:
            raise ApiError(refusals.no_agent(name), reason="not_found")
        return agent
