"""`/v1`: which request is for what, and who may ask."""

from __future__ import annotations

import re
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from pallas_gateway.agents.answering import Arrival, serve_call
from pallas_gateway.calls.credentials import NESTED_CALL_HEADER
from pallas_gateway.calls.json_size import TOO_MANY_VALUES, has_too_many_values
from pallas_gateway.identity.caller import CALLER_KEY
from pallas_gateway.identity.decision import Action
from pallas_gateway.identity.errors import TokenRejectedError, VerificationUnavailableError
from pallas_gateway.web import access, bodies, refusals
from pallas_gateway.web.connection import while_connected
from pallas_gateway.web.guards import host_and_origin_guard
from pallas_gateway.web.openai import answers, errors, requests
from pallas_gateway.web.openai.chat import ChatCompletion
from pallas_gateway.web.openai.errors import ApiError, BadRequestError, InOpenAiForm

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Message as AsgiMessage
    from starlette.types import Receive, Scope, Send

    from pallas_gateway.agents.hosted_agent import HostedAgent
    from pallas_gateway.hosting.gateway import Gateway
    from pallas_gateway.identity.caller import Caller

CHAT = "/v1/chat/completions"
MODELS = "/v1/models"
_MODEL = re.compile(rf"{MODELS}/([^/]+)")
_METHODS = {CHAT: "POST", MODELS: "GET"}
_ID_HEADER = "x-request-id"
_ID_KEY = "pallas.request_id"
"""Key of a request's scope under which its id stands: that of the call, if it becomes one."""


class OpenAiApi:
    """The API for the agents of one gateway, with the guards before it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._guarded = InOpenAiForm(host_and_origin_guard(self._answer, gateway.configuration))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; each has an id, which clients show and, for a call, the log as well."""
        request_id = secrets.token_hex(8)

        async def stamp(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[_ID_HEADER] = request_id
            await send(message)

        await self._guarded({**scope, _ID_KEY: request_id}, receive, stamp)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = await access.caller_of(self._gateway, scope)
        except (TokenRejectedError, VerificationUnavailableError) as error:
            response: Response | None = refusals.of_token(self._gateway, error, scope)
        else:
            response = self._refusal(scope, caller)
            if response is None:
                is_chat = scope["path"] == CHAT
                response = (
                    await self._chat(caller, scope, receive, send) if is_chat else self._shown(scope["path"], caller)
                )
        if response is not None:
            await response(scope, receive, send)

    def _refusal(self, scope: Scope, caller: Caller) -> Response | None:
        """Why a request is not looked at any closer: a stranger's, one that leads nowhere, or one by a wrong method."""
        path = scope["path"]
        if not caller.authenticated and not self._runnable(caller):
            return refusals.without_token(self._gateway, scope)
        if path not in _METHODS and not _MODEL.fullmatch(path):
            message = f"Nothing is here. There are {', '.join(_METHODS)} and {MODELS}/{{model}}."
            return ApiError(HTTPStatus.NOT_FOUND, message, "not_found").response()
        method = _METHODS.get(path, "GET")
        if scope["method"] != method:
            message = f"{scope['method']} is not used here. Use {method}."
            return ApiError(HTTPStatus.METHOD_NOT_ALLOWED, message, headers={"Allow": method}).response()
        return None

    def _shown(self, path: str, caller: Caller) -> Response:
        """The agents that the caller may run, or one of them."""
        runnable = self._runnable(caller)
        deployment = self._gateway.configuration.deployment
        created, owner = int(self._gateway.loaded_at.timestamp()), deployment.namespace or deployment.name
        models = {agent.name: answers.model(agent, created=created, owner=owner) for agent in runnable}
        if (match := _MODEL.fullmatch(path)) is None:
            return JSONResponse(answers.model_list(models.values()))
        name = match[1]
        return JSONResponse(models[name]) if name in models else errors.no_such_model(name).response()

    def _runnable(self, caller: Caller) -> list[HostedAgent]:
        return [agent for name, agent in self._gateway.agents.items() if caller.grants.may_run(name)]

    async def _chat(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Answer a request for an agent; a response that is left to send says why it could not be."""
        headers = Headers(scope=scope)
        parent = self._gateway.running.parent_of(headers.get(NESTED_CALL_HEADER))
        if (unread := self._refusal_before_body(headers, is_nested=parent is not None)) is not None:
            return unread
        limit = self._gateway.configuration.deployment.gateway.max_body_bytes
        body, _ = await bodies.read(receive, limit)
        if len(body) > limit:
            return errors.too_large(f"The request is larger than {limit} bytes (gateway.max_body_bytes).").response()
        if has_too_many_values(body):
            return errors.too_large(TOO_MANY_VALUES).response()
        try:
            document, model = requests.document_of(body)
        except BadRequestError as error:
            return errors.of_refusal(error).response()
        if (refused := self._refusal_to_run(model, {**scope, CALLER_KEY: caller})) is not None:
            return refused
        agent, running = self._gateway.agents[model], self._gateway.running
        silence_seconds = self._gateway.configuration.deployment.gateway.heartbeat_seconds
        chat = ChatCompletion(agent, document, running, (scope, receive, send), silence_seconds)
        arrival = Arrival(agent, caller, headers, running, requests.conversation_of(document), scope[_ID_KEY])
        work = serve_call(arrival, chat.parse, chat.answer, chat.deliver)
        await while_connected(receive, work, self._gateway.answers)
        return None

    def _refusal_to_run(self, model: str, scope: Scope) -> Response | None:
        refused = access.refusal(self._gateway, scope, model, Action.RUN, shown=None)
        if refused is None:
            return None if model in self._gateway.agents else errors.no_such_model(model).response()
        is_hidden = refused.status_code == HTTPStatus.NOT_FOUND
        return errors.no_such_model(model).response() if is_hidden else refused

    def _refusal_before_body(self, headers: Headers, *, is_nested: bool) -> Response | None:
        if not bodies.is_json(headers):
            return errors.not_json().response()
        return errors.draining().response() if self._gateway.draining and not is_nested else None
