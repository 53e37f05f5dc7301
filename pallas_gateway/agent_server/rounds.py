"""Questions to clients of 2026-07-28: a request that ends with questions, and is repeated with the answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from mcp import MCPError
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INVALID_PARAMS,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pallas_gateway.agent_server.asking import OUTCOMES, elicitation, modes_in
from pallas_gateway.agent_server.requests import caller_of, request_bearer
from pallas_gateway.calls.questions import ORIGINS_META_KEY, Answer
from pallas_gateway.errors import CallRefusedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcp_types import CallToolRequestParams, InputResponses

    from pallas_gateway.agent_server.requests import Context
    from pallas_gateway.calls.open_calls import OpenCall, OpenCalls
    from pallas_gateway.calls.questions import Mode


def sealing(calls: OpenCalls, endpoint: str) -> RequestStateBoundary:
    """Return the middleware that seals states and opens them, bound to endpoint, tool, arguments and caller."""
    sealing = calls.sealing
    security = RequestStateSecurity(keys=sealing.keys, ttl=sealing.seconds, bind_principal=_principal)
    return RequestStateBoundary(security, default_audience=f"pallas-gateway/{endpoint}")


def _principal(context: Any) -> str:
    caller, bearer = caller_of(context), request_bearer(context)
    if caller.authenticated and caller.owner is not None:
        return json.dumps(["owner", caller.owner])
    return json.dumps(["bearer", sha256(bearer.reveal().encode()).hexdigest() if bearer else None])


@dataclass(frozen=True, slots=True)
class Round:
    """One of the requests of a call of 2026-07-28.

    Attributes:
        modes: in which the client can be asked; empty in the initialize era.
        state: of the call that the request goes on with; None in the first request.
        responses: answers to the questions of that call.
    """

    modes: Collection[Mode] = ()
    state: str | None = None
    responses: InputResponses = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, context: Context, params: CallToolRequestParams) -> Self:
        """Return the round that a request is."""
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return cls()
        modes = modes_in((context.meta or {}).get(CLIENT_CAPABILITIES_META_KEY))
        return cls(modes, params.request_state, params.input_responses or {})


FIRST_ROUND = Round()


def questions_result(call: OpenCall, state: str) -> InputRequiredResult:
    """Return the result that asks the open questions of a call."""
    requests = {id_: elicitation(question) for id_, question in call.questions.items()}
    meta = {ORIGINS_META_KEY: {id_: question.origin for id_, question in call.questions.items()}}
    return InputRequiredResult(input_requests={**requests}, request_state=state, meta=meta)


def call_of(calls: OpenCalls, round_: Round, agent: str) -> OpenCall | None:
    """Return the call of this process that a repeated request goes on with, its questions answered; None without one.

    Raises:
        MCPError: the state was used, or its call has ended, or an answer does not fit.
    """
    if round_.state is None or calls.is_elsewhere(round_.state):
        return None
    call = calls.find(round_.state)
    if call is None or call.call.agent != agent:
        raise no_such_call()
    calls.attach(call, _answers(call, round_.responses))
    return call


def no_such_call() -> MCPError:
    """Return the protocol's error for a state that was used, or whose call has ended."""
    return MCPError(INVALID_PARAMS, "Invalid or expired requestState", {"reason": "invalid_request_state"})


def refuse_lost(calls: OpenCalls, round_: Round) -> None:
    """Refuse a request that repeats a call of another process, or of the time before a restart.

    Raises:
        CallRefusedError: `call_again`.
    """
    if calls.is_elsewhere(round_.state):
        message = "The call that asked has ended with its process. Call the tool again, without requestState."
        raise CallRefusedError(message, reason="call_again")


def _answers(call: OpenCall, responses: InputResponses) -> dict[str, Answer]:
    answers = {}
    for id_, question in call.questions.items():
        if (response := responses.get(id_)) is None:
            continue
        if not isinstance(response, ElicitResult):
            raise MCPError(INVALID_PARAMS, f"inputResponses: '{id_}' is no answer to an elicitation.")
        answer = Answer(OUTCOMES[response.action], response.content)
        if (why := question.misfit(answer)) is not None:
            raise MCPError(INVALID_PARAMS, f"inputResponses: in '{id_}', {why}. Send another answer with this state.")
        answers[id_] = answer
    return answers
