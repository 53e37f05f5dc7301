"""Questions to clients of the initialize era: a request on the stream of the call, and the answer in another POST.

The session id holds the modes of questions that the client supports, so the gateway stores nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcp import MCPError
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult
from pydantic import ValidationError

from pallas_gateway.calls.forms import plain_form
from pallas_gateway.calls.questions import ORIGIN_META_KEY, Answer
from pallas_gateway.doors.mcp.envelope import SESSION_HEADER, headers_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pallas_gateway.calls.questions import Mode, Outcome, Question
    from pallas_gateway.doors.mcp.envelope import Context

MOST_ATTEMPTS = 3
"""Times that a form is sent if its answers do not fit."""
_FLAGS: Mapping[Mode, str] = {"form": "f", "url": "u"}
_SINCE: Mapping[Mode, str] = {"form": "2025-06-18", "url": "2025-11-25"}
OUTCOMES: Mapping[str, Outcome] = {"accept": "accepted", "decline": "declined", "cancel": "cancelled"}


def modes_in(capabilities: object) -> list[Mode]:
    """Return the modes of `capabilities.elicitation` as a client sent it; an empty object means forms."""
    declared = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
    if not isinstance(declared, dict):
        return []
    return [mode for mode in _FLAGS if isinstance(declared.get(mode), dict)] or ([] if declared else ["form"])


def new_session_id(modes: Collection[Mode]) -> str:
    """Return a session id for a client that supports these modes of questions."""
    return f"{secrets.token_urlsafe(16)}.{''.join(_FLAGS[mode] for mode in modes)}"


def modes_of_session(session: str | None, version: str) -> list[Mode]:
    """Return the modes of questions that the client of a session supports in this version of the protocol."""
    flags = (session or "").rpartition(".")[2] if session and "." in session else ""
    return [mode for mode, flag in _FLAGS.items() if flag in flags and version >= _SINCE[mode]]


def elicitation(question: Question) -> ElicitRequest:
    """Return the request for a question. 2026-07-28 has neither its `_meta` nor its id."""
    meta: Any = {ORIGIN_META_KEY: question.origin}
    if question.url is not None:
        params = ElicitRequestURLParams(
            message=question.message, url=question.url, elicitation_id=question.id, meta=meta
        )
        return ElicitRequest(params=params)
    schema: dict[str, Any] = plain_form(question.schema or {"type": "object", "properties": {}})
    return ElicitRequest(params=ElicitRequestFormParams(message=question.message, requested_schema=schema, meta=meta))


class StreamAsker:
    """The `Asker` of a call whose client receives requests on the stream of the call."""

    client_may_leave = False

    def __init__(self, context: Context) -> None:
        session = headers_of(context).get(SESSION_HEADER)
        self.modes: Collection[Mode] = modes_of_session(session, context.protocol_version)
        self._context = context

    async def put(self, question: Question) -> Answer:
        """Return the client's answer; a form whose answers do not fit its schema is sent again."""
        why = None
        for _ in range(MOST_ATTEMPTS):
            hint = f" (The answer did not fit: {why}.)" if why is not None else ""
            try:
                result = await self._elicit(replace(question, message=f"{question.message}{hint}"))
            except NoBackChannelError:
                return Answer("unaskable")
            except (MCPError, ValidationError):  # an error, or no answer to an elicitation
                return Answer("cancelled")
            answer = Answer(OUTCOMES[result.action], result.content)
            if (why := question.misfit(answer)) is None:
                return answer
        return Answer("cancelled")

    async def _elicit(self, question: Question) -> ElicitResult:
        metadata = ServerMessageMetadata(related_request_id=self._context.request_id)
        return await self._context.session.send_request(elicitation(question), ElicitResult, metadata=metadata)
