"""`/v1`: routes, and the access to each."""

from __future__ import annotations

import re
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pallas_gateway.core.call_request import requested
from pallas_gateway.doors.http import access, bodies, refusals
from pallas_gateway.doors.http.host_check import HostCheck
from pallas_gateway.doors.openai import answers, errors, requests
from pallas_gateway.doors.openai.answering import CHAT_COMPLETION, RESPONSE, Answering, Form
from pallas_gateway.doors.openai.errors import RETRY_AFTER, BadRequestError, OpenAiError
from pallas_gateway.errors import STOPPING, TokenError
from pallas_gateway.identity.caller import CALLER_KEY, Caller
from pallas_gateway.identity.decision import Action
from pallas_gateway.json_size import TOO_MANY_VALUES, has_too_many_values
from pallas_gateway.long_responses import ServerSentEvents

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.types import Message as AsgiMessage
    from starlette.types import Receive, Scope, Send

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MODELS = "/v1/models"
_MODEL = re.compile(rf"{MODELS}/([^/]+)")
_METHODS = {CHAT: "POST", RESPONSES: "POST", MODELS: "GET"}
_FORMS = {CHAT: CHAT_COMPLETION, RESPONSES: RESPONSE}
_ID_HEADER = "x-request-id"
_ID_KEY = "pallas.request_id"
"""Key of the request's id in its scope; a call takes it as its own id."""


class OpenAiApi:
    """The ASGI app of this API, with the gateway's guards."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._guarded = HostCheck(self._answer, gateway.configuration, body_of=_refusal_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with its id in a header."""
        request_id = secrets.token_hex(8)

        async def stamp(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[_ID_HEADER] = request_id
            await send(message)

        await self._guarded({**scope, _ID_KEY: request_id}, receive, stamp)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._respond(scope, receive, send)
        except TokenError as error:
            response = refusals.of_token(self._gateway, error, scope)
        except refusals.RefusedError as error:
            response = error.response
        except BadRequestError as error:
            response = errors.of_refusal(error).response()
        except OpenAiError as error:
            response = error.response()
        if response is not None:
            await errors.in_openai_form(response)(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Return the response, None if it was sent."""
        path = scope["path"]
        caller = await access.caller_of(self._gateway, scope)
        runnable = caller.grants.runnable(self._gateway.agents).values()
        if not caller.authenticated and not runnable:
            return refusals.without_token(self._gateway, scope)
        if path.startswith(f"{RESPONSES}/") and scope["method"] in ("GET", "DELETE"):
            message = "The gateway keeps no responses (store: false), so none can be read or deleted."
            raise OpenAiError(HTTPStatus.NOT_FOUND, message, "not_found")
        if path not in _METHODS and not _MODEL.fullmatch(path):
            message = f"This is not offered. There are {', '.join(_METHODS)} and {MODELS}/{{model}}."
            raise OpenAiError(HTTPStatus.NOT_FOUND, message, "not_found")
        method = _METHODS.get(path, "GET")
        if scope["method"] != method:
            message = f"{scope['method']} is not used here. Use {method}."
            raise OpenAiError(HTTPStatus.METHOD_NOT_ALLOWED, message, headers={"Allow": method})
        if (form := _FORMS.get(path)) is None:
            return self._models(path, runnable)
        return await self._call(form, caller, scope, receive, send)

    def _models(self, path: str, runnable: Iterable[HostedAgent]) -> Response:
        """Return the agents that the caller may run, or the one of the path."""
        deployment = self._gateway.configuration.deployment
        created, owner = int(self._gateway.loaded_at.timestamp()), deployment.namespace or deployment.name
        models = {agent.name: answers.model(agent, created=created, owner=owner) for agent in runnable}
        if (match := _MODEL.fullmatch(path)) is None:
            return JSONResponse({"object": "list", "data": [*models.values()]})
        if (name := match[1]) not in models:
            raise errors.no_such_model(name)
        return JSONResponse(models[name])

    async def _call(self, form: Form, caller: Caller, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Answer a request by a call; return a refusal that was not sent yet."""
        headers = Headers(scope=scope)
        if not bodies.is_json(headers):
            message = "Send the body as application/json (Content-Type)."
            raise OpenAiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message, "not_json")
        if self._gateway.calls.draining:
            raise OpenAiError(HTTPStatus.SERVICE_UNAVAILABLE, STOPPING, "stopping", headers=RETRY_AFTER)
        limit = self._gateway.configuration.deployment.gateway.max_body_bytes
        body = await bodies.read(Request(scope, receive), limit)
        if body is None:
            raise errors.too_large(f"The request is larger than {limit} bytes (gateway.max_body_bytes).")
        if has_too_many_values(body):
            raise errors.too_large(TOO_MANY_VALUES)
        document, model = requests.document_of(body)
        scope = {**scope, CALLER_KEY: caller}
        if (agent := access.agent_for(self._gateway, scope, model, Action.RUN, shown=None)) is None:
            raise errors.no_such_model(model)
        silence_seconds = self._gateway.configuration.deployment.gateway.heartbeat_seconds
        events = ServerSentEvents(receive, send, silence_seconds=silence_seconds)
        ids = {"conversation_id": requests.conversation_of(document), "call_id": scope[_ID_KEY]}

        async with events.watched():
            with requested(agent, caller, headers, api="openai", **ids) as request:
                await Answering(form, document, (scope, receive, send), events).respond(request)
        return None


def _refusal_body(reason: str, sentence: str) -> Mapping[str, Any]:
    status = HTTPStatus.MISDIRECTED_REQUEST if reason == "wrong_host" else HTTPStatus.FORBIDDEN
    return OpenAiError(status, sentence).body()
