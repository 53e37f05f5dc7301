"""`POST /api/agents/{name}/tools/{server}/{tool}`: runs one tool of an agent's downstream, without its model.

It is a call of the agent, with all that holds for calls. The body is `{"arguments": {…}}`, with `"approved": true` for
a tool that requires approval; without it such a tool is answered by 409 with the question.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pydantic import Field
from starlette.responses import JSONResponse, Response

from pallas_gateway.calls.asking.approvals import ApprovalRequiredError
from pallas_gateway.calls.call import ToolRequest
from pallas_gateway.calls.conversation import is_text
from pallas_gateway.calls.questions import Answer
from pallas_gateway.core.call_request import requested
from pallas_gateway.core.running_call import RunningCall
from pallas_gateway.doors.api import requests
from pallas_gateway.doors.api.base import Api
from pallas_gateway.doors.api.errors import ApiError, not_allowed, response_to
from pallas_gateway.doors.api.models import Model, parsed
from pallas_gateway.doors.http import refusals
from pallas_gateway.doors.http.access import agent_for, caller_of
from pallas_gateway.errors import STOPPING, GatewayError
from pallas_gateway.features.console.api import agent_named
from pallas_gateway.identity.caller import CALLER_KEY
from pallas_gateway.identity.decision import Action
from pallas_gateway.long_responses import ServerSentEvents
from pallas_gateway.telemetry.redaction import cleaned_data
from pallas_gateway.urls import AGENT_DETAILS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from pallas_gateway.calls.call import Call, Reply
    from pallas_gateway.core.call_request import CallRequest
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.identity.caller import Caller

SWITCHED_OFF = "running tools is off; `gateway.console_run_tools: true` in agents.yaml enables it"
_PATH = re.compile(rf"{AGENT_DETAILS}([^/]+)/tools/(.+/.+)", re.DOTALL)
_APPROVED = Answer("accepted", {"decision": "once"})
_STATUS = {"approval_required": HTTPStatus.CONFLICT, "no_tool": HTTPStatus.NOT_FOUND}
"""By the reasons that other APIs do not have."""
_CLIENT_LEFT = 499
"""The status of a response that nobody reads."""


def is_path(path: str) -> bool:
    """Return True for a path of this endpoint."""
    return _PATH.fullmatch(path) is not None


class ToolRunBody(Model):
    """The body of a request."""

    arguments: dict[str, Any] = Field(default_factory=dict)
    approved: bool = False


class ToolRunsApi(Api):
    """The ASGI app of this endpoint."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.respond(partial(self._answer, send), scope, receive, send)

    async def _answer(self, send: Send, request: Request) -> Response:
        name, asked = self._path(request)
        scope = request.scope
        caller = scope[CALLER_KEY] = await caller_of(self._gateway, scope)
        if (agent := agent_for(self._gateway, scope, name, Action.RUN, shown=None)) is None:
            return refusals.absent(self._gateway, scope, name)
        settings = self._gateway.configuration.deployment.gateway
        if not settings.console_run_tools:
            return refusals.not_found(scope, SWITCHED_OFF)
        if request.method != "POST":
            return not_allowed(["POST"])
        if self._gateway.calls.draining:
            raise ApiError(STOPPING, reason="stopping")
        body = requests.json_object(await self.read(request))
        response = Response(status_code=_CLIENT_LEFT)
        async with ServerSentEvents(request.receive, send).watched():
            response = await _response(agent, caller, request.headers, asked, body)
        return response  # noqa: RET504  the block is left early if the client leaves

    def _path(self, request: Request) -> tuple[str, str]:
        """Return the agent's name, and the server and the tool as they are asked for."""
        match = _PATH.fullmatch(request.scope["path"])
        asked, tool = match.groups() if match else ("", "")
        return agent_named(self._gateway, asked), tool


async def _response(
    agent: HostedAgent, caller: Caller, headers: Mapping[str, str], asked: str, body: Mapping[str, Any]
) -> Response:
    """Run the tool that is `asked` for as `server/tool`; `body` is not validated."""

    async def decode(call: Call) -> Call:
        read = parsed(ToolRunBody, body)
        if not _is_text(read.arguments):
            raise requests.bad("'arguments' holds half a surrogate pair, or is nested too deeply; send whole text.")
        given = {"approval": _APPROVED} if read.approved else {}
        return replace(call, tool=ToolRequest(*_server_and_tool(agent, asked), read.arguments), given=given)

    with requested(agent, caller, headers, api="console") as request:
        with request.answering():
            call = RunningCall(agent, await request.decoded(decode))
            request.ended(await call.answered())
        return _encoded(request)


def _encoded(request: CallRequest) -> Response:
    outcome, about = request.outcome, dict[str, Any](callId=request.call.call_id)
    if isinstance(outcome, ApprovalRequiredError):
        about |= {"question": _question(outcome, request.call)}
    if isinstance(outcome, GatewayError):
        response = response_to(outcome, about=about)
        response.status_code = _STATUS.get(outcome.reason, response.status_code)
        return response
    return JSONResponse({**_result(outcome), **about, "seconds": round(request.seconds, 3)})


def _server_and_tool(agent: HostedAgent, asked: str) -> tuple[str, str]:
    """Return the server and the tool of a path: names of both may have a slash."""
    names = [one.name for one in agent.runtime.downstreams] if agent.runtime is not None else []
    fitting = [name for name in names if asked.startswith(f"{name}/")]
    server = max(fitting, key=len, default=asked.partition("/")[0])
    return server, asked[len(server) + 1 :]


def _question(required: ApprovalRequiredError, call: Call) -> dict[str, Any]:
    """Return the question that the request leaves open, with the complete arguments of its tool."""
    question = required.question
    arguments = call.tool.arguments if call.tool is not None else {}
    return {"agent": call.agent, "tool": question.tool, "message": question.message, "arguments": arguments}


def _result(reply: Reply) -> dict[str, Any]:
    """Return the result of the tool as MCP writes it, without known secrets."""
    found = reply.tool_result
    whole: dict[str, Any] = found.model_dump(mode="json", by_alias=True, exclude_none=True) if found else {}
    shown = {key: whole[key] for key in ("content", "structuredContent") if key in whole}
    return {**cleaned_data(shown), "isError": bool(whole.get("isError"))}


def _is_text(arguments: Mapping[str, Any]) -> bool:
    """Return True if all texts are Unicode, which servers and clients can be sent."""
    try:
        return is_text(json.dumps(arguments, ensure_ascii=False))
    except RecursionError:
        return False
