"""What a request for a turn, or for a page of threads, asks for, as values of the product."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_gateway.calls.conversation import current_message, history_rows, parse_history, refuse_too_many
from pallas_gateway.calls.forms import size_of
from pallas_gateway.calls.parameters import parse
from pallas_gateway.calls.questions import Answer
from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.doors.api.requests import bad
from pallas_gateway.features.threads.http.models import LAST_TURN
from pallas_gateway.features.threads.records import ThreadNotFoundError, WantedThreads
from pallas_gateway.limits import QuestionLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pallas_gateway.calls.call import Call
    from pallas_gateway.calls.conversation import Skipped
    from pallas_gateway.calls.questions import Outcome
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.features.threads.http.models import GivenAnswers, Said, ThreadsQuery
    from pallas_gateway.features.threads.records import Position
    from pallas_gateway.tasks import Parts

_OUTCOMES: Mapping[str, Outcome] = {"accept": "accepted", "decline": "declined", "cancel": "cancelled"}
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")


def with_message(asked: Call, said: Said, agent: HostedAgent, max_bytes: int) -> Parts[tuple[Call, Skipped]]:
    """Return a call with the message, history and parameters of a chat request, and the entries that were left out.

    Raises:
        CallRefusedError: `bad_input`, `bad_params` or `bad_image`.
        ApiError: `message_too_large`.
    """
    if len(said.message.encode()) > max_bytes:
        why = f"The message has more than {max_bytes} bytes (gateway.max_message_bytes). Send a shorter one."
        raise ApiError(why, reason="message_too_large")
    rows = history_rows(said.messages)
    refuse_too_many(rows, said.images, agent.shared.max_history_entries)
    message = yield from current_message(said.message, said.images)
    parameters = parse(said.params, agent.settings)
    history, skipped = yield from parse_history(rows)
    return replace(asked, message=message, parameters=parameters, history=history), skipped


def given_answers(body: GivenAnswers) -> dict[str, Answer]:
    """The answers of a request by the ids of their questions; none may be given.

    Raises:
        CallRefusedError: `bad_input`: a form is too large.
    """
    most = QuestionLimits().answer_characters
    if any(size_of(one.content or {}) > most for one in body.answers.values()):
        raise bad(f"'content' has more than {most} characters. Send a shorter answer.")
    return {
        id_: Answer(_OUTCOMES[one.action], one.content if one.action == "accept" else None)
        for id_, one in body.answers.items()
    }


def turn_number(given: str) -> int:
    """The number of a turn in a path.

    Raises:
        ThreadNotFoundError: no turn can have it.
    """
    if not _NUMBER.fullmatch(given) or int(given) > LAST_TURN:
        raise ThreadNotFoundError("no such turn")
    return int(given)


def wanted_threads(asked: ThreadsQuery) -> WantedThreads:
    """The page of threads that a query asks for."""
    return WantedThreads(asked.limit, _position(asked.cursor), asked.search or None, asked.rated)


def _position(cursor: str | None) -> Position | None:
    """The start of a page: `{milliseconds}.{id}` of the last thread of the page before, of a search with a turn."""
    if cursor is None:
        return None
    milliseconds, thread_id, *turn = cursor.split(".")
    place = int(milliseconds), thread_id
    return (*place, int(turn[0])) if turn else place
