"""Calls of 2026-07-28 with questions: the result of a request has questions, and the client repeats it with answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial
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
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pallas_gateway.calls.cancellation import cut_off
from pallas_gateway.calls.forms import size_of
from pallas_gateway.calls.questions import ORIGINS_META_KEY, Answer
from pallas_gateway.errors import CallFailedError, CallRefusedError
from pallas_gateway.events.events import Admitted
from pallas_gateway.limits import QuestionLimits
from pallas_gateway.mcp_server.envelope import caller_of, request_bearer
from pallas_gateway.mcp_server.stream_asking import OUTCOMES, elicitation, modes_in
from pallas_gateway.questions.elsewhere import NOT_THERE_KEY
from pallas_gateway.questions.open_calls import OpenCall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from mcp_types import CallToolRequestParams

    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.questions import Mode
    from pallas_gateway.events.events import Event, EventSink
    from pallas_gateway.mcp_server.envelope import Context
    from pallas_gateway.questions.elsewhere import NotThere
    from pallas_gateway.questions.open_calls import Checkpoint, OpenCalls

END_META_KEY = "pallas/end"
"""True in `_meta` of a repeated request that ends its call and answers no question."""
ENDED_WITH_PROCESS = "The call that asked has ended with its process. Call the tool again, without requestState."
_LIMITS = QuestionLimits()
_MAY_WAIT = (
    "The call was cancelled. If it waits at another replica of the gateway, it ends there when its state expires, "
    "without another turn of the model."
)


def sealing(calls: OpenCalls, endpoint: str) -> RequestStateBoundary:
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
        if not payload.startswith(named := f"{name}.".encode()):
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
    """

    modes: Collection[Mode] = ()
    state: str | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict, repr=False)
    ends: bool = False
    not_there: NotThere | None = None

    @classmethod
    def of(cls, context: Context, params: CallToolRequestParams) -> Self:
        """Return the round of a request.

        Raises:
            MCPError: a request that ends a call has no state, or has answers; an answer is malformed or too large.
        """
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return cls()
        meta = context.meta or {}
        modes, ends = modes_in(meta.get(CLIENT_CAPABILITIES_META_KEY)), meta.get(END_META_KEY) is True
        responses = params.input_responses or {}
        if ends and (params.request_state is None or responses):
            raise MCPError(INVALID_PARAMS, f"_meta: '{END_META_KEY}' requires requestState, without inputResponses.")
        if len(responses) > _LIMITS.at_once:
            raise MCPError(INVALID_PARAMS, f"inputResponses: a call has at most {_LIMITS.at_once} open questions.")
        answers = {id_: _answer(id_, one) for id_, one in responses.items()}
        missing = context.request.scope.get(NOT_THERE_KEY) if context.request is not None else None
        return cls(modes, params.request_state, answers, ends, missing)


FIRST_ROUND = Round()


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a call of another process goes on, and the answers to its questions."""

    at: Checkpoint
    answers: Mapping[str, Answer] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Continued:
    """The call that a request continues; without values for a new call.

    Attributes:
        waiting: a call that waits in this process.
        resumed: a call to resume, whose process has ended.
        is_lost: the call has ended with its process, or waits at another replica, and cannot be resumed.
        gone: the id of a call to end that does not wait in this gateway.
        refused: the reason why the request cannot continue its call now.
    """

    waiting: OpenCall | None = None
    resumed: Resumption | None = None
    is_lost: bool = False
    gone: str | None = None
    refused: CallRefusedError | None = None

    @property
    def call_id(self) -> str | None:
        """The id of the call; None for a new call."""
        if self.waiting is not None:
            return self.waiting.call.call_id
        return self.resumed.at.call_id if self.resumed is not None else self.gone

    def waiting_call(self) -> Call | None:
        """Return the call that waits in this process; None for a call to resume.

        Raises:
            CallRefusedError: `call_again`, `database_unavailable`.
            CallFailedError: `cancelled`.
        """
        if self.waiting is not None:
            return self.waiting.call
        if self.refused is not None:
            raise self.refused
        if self.gone is not None:
            raise CallFailedError(_MAY_WAIT, reason="cancelled") if self.is_lost else cut_off(stopping=False)
        if self.is_lost:
            raise CallRefusedError(ENDED_WITH_PROCESS, reason="call_again")
        return None

    def resuming(self, call: Call) -> Call:
        """Return the call with its checkpoint, and the answers that were given there."""
        if self.resumed is None:
            return call
        return replace(call, checkpoint=self.resumed.at.checkpoint, given=self.resumed.answers)

    def open_call(self, call: Call, modes: Collection[Mode], calls: OpenCalls) -> OpenCall | None:
        """Return the call with its connection to the client; None for a client that cannot be asked."""
        if self.waiting is not None:
            return self.waiting
        if self.resumed is None:
            return OpenCall(call, modes) if modes else None
        resumed = OpenCall(call, modes or ("form", "url"))  # it has answered a question, so it can be asked
        resumed.sink = _Admitting(resumed.events, partial(calls.admit, self.resumed.at.ticket))
        return resumed

    async def ended(self, calls: OpenCalls) -> None:
        """Accept the state of a call to resume again if the call was refused."""
        if self.resumed is not None:
            await calls.give_back(self.resumed.at.ticket)


@dataclass(frozen=True, slots=True)
class _Admitting:
    """The `EventSink` of a call that is resumed: its state cannot be used again once it is admitted."""

    sink: EventSink
    admit: Callable[[], object]

    def put(self, event: Event) -> None:
        if isinstance(event, Admitted):
            self.admit()
        self.sink.put(event)


NEW_CALL = Continued()


def questions_result(call: OpenCall, state: str) -> InputRequiredResult:
    """Return the result that asks the open questions of a call."""
    requests = {id_: elicitation(question) for id_, question in call.questions.items()}
    meta = {ORIGINS_META_KEY: {id_: question.origin for id_, question in call.questions.items()}}
    return InputRequiredResult(input_requests={**requests}, request_state=state, meta=meta)


async def call_of(calls: OpenCalls, round_: Round, agent: str) -> OpenCall | None:
    """Answer the questions of the call of this process that a request continues, and return it; None for a new call.

    Raises:
        MCPError: the state was used, or its call has ended, or an answer does not fit.
        StatesUnavailableError: it is not known now whether the state was used.
    """
    if round_.state is None:
        return None
    call = calls.find(round_.state)
    if call is None or call.call.agent != agent:
        raise no_such_call()
    try:
        await calls.attach(call, _fitting(call, round_.answers))
    except LookupError as error:
        raise no_such_call() from error
    if round_.ends:
        call.end()
    return call


def no_such_call() -> MCPError:
    """Return the protocol's error for a state that was used or whose call has ended."""
    return MCPError(INVALID_PARAMS, "Invalid or expired requestState", {"reason": "invalid_request_state"})


def gone(calls: OpenCalls, round_: Round, lost: Continued | None = None) -> Continued:
    """Return a call to end that has ended, or is `lost`; its state cannot be used again."""
    if lost is not None and lost.resumed is not None:
        calls.admit(lost.resumed.at.ticket)
    return Continued(is_lost=lost is not None, gone=(round_.state or "").split(".", 3)[1])


async def resumption_of(calls: OpenCalls, round_: Round) -> Resumption | None:
    """Return the call of an ended process that a request resumes; None if it cannot be resumed.

    Raises:
        MCPError: the state was used, or its process was not asked for the call.
        StatesUnavailableError: it is not known now whether the state was used.
    """
    state, missing = round_.state or "", round_.not_there
    if missing is None or state.partition(".")[0] != missing.process:  # the client has changed the name
        raise no_such_call()
    if missing.is_lost:
        return None
    try:
        checkpoint = await calls.resume(state)
    except LookupError as error:
        raise no_such_call() from error
    return Resumption(checkpoint, round_.answers) if checkpoint is not None else None


def _fitting(call: OpenCall, given: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return the answers to open questions of a call."""
    answers = {id_: given[id_] for id_ in call.questions if id_ in given}
    for id_, answer in answers.items():
        if (why := call.questions[id_].misfit(answer)) is not None:
            raise MCPError(INVALID_PARAMS, f"inputResponses: in '{id_}', {why}. Send another answer with this state.")
    return answers


def _answer(id_: str, response: object) -> Answer:
    if not isinstance(response, ElicitResult):
        raise MCPError(INVALID_PARAMS, f"inputResponses: '{id_[:64]}' is no answer to an elicitation.")
    if size_of(response.content or {}) > (most := _LIMITS.answer_characters):
        why = f"'{id_[:64]}' has more than {most} characters. Send a shorter answer with this state."
        raise MCPError(INVALID_PARAMS, f"inputResponses: {why}")
    return Answer(OUTCOMES[response.action], response.content)
