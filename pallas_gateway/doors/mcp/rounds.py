"""Questions in the wire format of 2026-07-28: a result has them with a sealed state, the next request the answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self, override

from mcp import MCPError
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    InvalidRequestState,
    RequestStateBoundary,
    RequestStateSecurity,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INVALID_PARAMS,
    ElicitResult,
    InputRequiredResult,
)

from pallas_gateway.calls.asking.elsewhere import NOT_THERE_KEY
from pallas_gateway.calls.forms import size_of
from pallas_gateway.calls.questions import ORIGINS_META_KEY, Answer
from pallas_gateway.doors.mcp.envelope import caller_of, request_bearer
from pallas_gateway.doors.mcp.stream_asking import OUTCOMES, elicitation, modes_in
from pallas_gateway.limits import QuestionLimits

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mcp_types import CallToolRequestParams

    from pallas_gateway.calls.asking.elsewhere import NotThere
    from pallas_gateway.calls.questions import Mode
    from pallas_gateway.core.waiting_calls import WaitingCall, WaitingCalls
    from pallas_gateway.doors.mcp.envelope import Context

END_META_KEY = "pallas/end"
"""True in `_meta` of a repeated request that ends its call and answers no question."""
ENDED_WITH_PROCESS = "The call that asked has ended with its process. Call the tool again, without requestState."
TASKS = "io.modelcontextprotocol/tasks"
"""The extension by which a request accepts a task in place of the answer."""
_LIMITS = QuestionLimits()


def sealing(calls: WaitingCalls, endpoint: str) -> RequestStateBoundary:
    """Return the middleware that seals states and opens them, for one endpoint, tool, caller and set of arguments."""
    sealing = calls.sealing
    codec = _NamedCodec(sealing.keys, calls.process)
    security = RequestStateSecurity(codec=codec, ttl=sealing.seconds, bind_principal=_principal)
    return RequestStateBoundary(security, default_audience=f"pallas-gateway/{endpoint}")


class _NamedCodec(AESGCMRequestStateCodec):
    """Seals states, and writes the name of their process before them, so that other processes can forward requests.

    The name is sealed as well, so that a state with another name is refused.
    """

    def __init__(self, keys: Sequence[bytes], process: str) -> None:
        super().__init__(keys)
        self._process = process

    @override
    def seal(self, payload: bytes) -> str:
        name = f"{self._process}."
        return name + super().seal(name.encode() + payload)

    @override
    def unseal(self, token: str) -> bytes:
        name, _, sealed = token.partition(".")
        payload = super().unseal(sealed)
        if not payload.startswith(named := f"{name}.".encode(errors="surrogatepass")):
            raise InvalidRequestState("process")
        return payload.removeprefix(named)


def _principal(context: Any) -> str:
    caller, bearer = caller_of(context), request_bearer(context)
    if caller.authenticated and caller.owner is not None:
        return json.dumps(["owner", caller.owner])
    return json.dumps(["bearer", sha256(bearer.reveal().encode()).hexdigest() if bearer else None])


@dataclass(frozen=True, slots=True)
class Round:
    """One of the requests of a call of 2026-07-28.

    Attributes:
        modes: of questions that the client supports; empty in the initialize era.
        state: of the call that the request continues; None for a new call.
        answers: to questions of that call, by their ids.
        ends: the request ends that call.
        not_there: the process that was asked for that call, and does not have it.
        declares_tasks: the client accepts a task in place of the answer.
    """

    modes: Collection[Mode] = ()
    state: str | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict, repr=False)
    ends: bool = False
    not_there: NotThere | None = None
    declares_tasks: bool = False

    @classmethod
    def of(cls, context: Context, params: CallToolRequestParams) -> Self:
        """Return the round of a request of 2026-07-28.

        Raises:
            MCPError: a request that ends a call has no state, or has answers; an answer is malformed or too large.
        """
        meta = context.meta or {}
        capabilities, ends = meta.get(CLIENT_CAPABILITIES_META_KEY), meta.get(END_META_KEY) is True
        modes = modes_in(capabilities)
        responses = params.input_responses or {}
        if ends and (params.request_state is None or responses):
            raise MCPError(INVALID_PARAMS, f"_meta: '{END_META_KEY}' requires requestState, without inputResponses.")
        if len(responses) > _LIMITS.at_once:
            raise MCPError(INVALID_PARAMS, f"inputResponses: a call has at most {_LIMITS.at_once} open questions.")
        answers = {id_: answer_of(id_, one) for id_, one in responses.items()}
        missing = context.request.scope.get(NOT_THERE_KEY) if context.request is not None else None
        return cls(modes, params.request_state, answers, ends, missing, declares_tasks(capabilities))


FIRST_ROUND = Round()


def questions_result(call: WaitingCall, state: str) -> InputRequiredResult:
    """Return the result that asks the open questions of a call."""
    requests = {id_: elicitation(question) for id_, question in call.open.items()}
    meta = {ORIGINS_META_KEY: {id_: question.origin for id_, question in call.open.items()}}
    return InputRequiredResult(input_requests={**requests}, request_state=state, meta=meta)


def declares_tasks(capabilities: object) -> bool:
    """Return whether the capabilities that a client sent have the extension `TASKS`."""
    extensions = capabilities.get("extensions") if isinstance(capabilities, dict) else None
    return isinstance(extensions, dict) and isinstance(extensions.get(TASKS), dict)


def answer_of(id_: str, response: object) -> Answer:
    """Return the answer to a question of this id.

    Raises:
        MCPError: it is no answer to an elicitation, or too large.
    """
    if not isinstance(response, ElicitResult):
        raise MCPError(INVALID_PARAMS, f"inputResponses: '{id_[:64]}' is no answer to an elicitation.")
    if size_of(response.content or {}) > (most := _LIMITS.answer_characters):
        why = f"'{id_[:64]}' has more than {most} characters. Send a shorter answer with this state."
        raise MCPError(INVALID_PARAMS, f"inputResponses: {why}")
    return Answer(OUTCOMES[response.action], response.content)
