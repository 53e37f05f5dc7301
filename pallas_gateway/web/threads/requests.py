"""A request's body, query and headers as validated values. `openapi.py` describes the same values to clients."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.conversation import (
    NOTHING_SKIPPED,
    Skipped,
    current_message,
    history_rows,
    parse_history,
    refuse_too_many,
)
from pallas_gateway.calls.forms import size_of
from pallas_gateway.calls.parameters import NO_PARAMETERS, Parameters, parse
from pallas_gateway.calls.questions import Answer
from pallas_gateway.limits import QuestionLimits
from pallas_gateway.web.api.requests import bad, flag, query_switch, refuse_unknown, whole_number, whole_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from pallas_gateway.calls.call import Message
    from pallas_gateway.calls.questions import Outcome
    from pallas_gateway.config.model.agents import AgentSettings
    from pallas_gateway.threads.records import Position, Rating, WantedThreads

THREAD_ID = re.compile(r"[0-9a-f]{32}")
CURSOR = re.compile(r"[0-9]{1,15}\.[0-9a-f]{32}(\.[0-9]{1,9})?")
"""Start of a page of threads: `{milliseconds}.{id}` of the last thread of the page before, of a search with a turn."""
LONGEST_TITLE = 200
DEFAULT_LIMIT, MOST = 50, 200  # entries of one page
LAST_TURN = 2**31 - 1
MOST_ANSWERS = QuestionLimits().at_once  # of one request
SWITCHES = BACKGROUND, ASSISTANT_STREAM = ("background", "assistantStream")
LONGEST_SEARCH = 200
LONGEST_NOTE = 4000
RATINGS: tuple[Rating, ...] = ("good", "bad")
_CHAT_KEYS = ("message", "threadId", "replaces", "images", "params", "messages", *SWITCHES)
_OUTCOMES: Mapping[str, Outcome] = {"accept": "accepted", "decline": "declined", "cancel": "cancelled"}
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One message; without a `thread_id` it begins a new thread.

    `history` takes the place of the stored one; `skipped` are its entries that were left out.
    """

    message: Message
    thread_id: str | None = None
    parameters: Parameters = NO_PARAMETERS
    history: tuple[Message, ...] = ()
    skipped: Skipped = NOTHING_SKIPPED


def chat_request(body: Mapping[str, Any], settings: AgentSettings, *, max_entries: int) -> TurnRequest:
    """The body of a chat request.

    Raises:
        CallRefusedError: `bad_input`, `bad_params` or `bad_image`.
    """
    refuse_unknown(body, _CHAT_KEYS)
    thread_id = body.get("threadId")
    if thread_id is not None and not (isinstance(thread_id, str) and THREAD_ID.fullmatch(thread_id)):
        raise bad("'threadId' must be the id of a thread, 32 hexadecimal digits.")
    _check_replaced(body.get("replaces"), thread_id)
    if "message" not in body:
        raise bad("'message' is required.")
    text = whole_text("message", body["message"])
    rows = history_rows(body.get("messages"))
    refuse_too_many(rows, body.get("images"), max_entries)
    for switch in SWITCHES:
        flag(body, switch)
    message, parameters = current_message(text, body.get("images")), parse(body.get("params"), settings)
    return TurnRequest(message, thread_id, parameters, *parse_history(rows))


def _check_replaced(number: object, thread_id: str | None) -> None:
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= LAST_TURN:
        raise bad(f"'replaces' must be the number of a turn, from 1 to {LAST_TURN}.")
    if thread_id is None:
        raise bad("'replaces' takes a 'threadId': the thread of that turn.")


def given_answers(body: Mapping[str, Any]) -> dict[str, Answer]:
    """The answers in the body of a `POST …/answers`, by question; none may be given.

    Raises:
        CallRefusedError: `bad_input`.
    """
    refuse_unknown(body, ("answers", *SWITCHES))
    for switch in SWITCHES:
        flag(body, switch)
    given = body.get("answers")
    if not isinstance(given, dict) or len(given) > MOST_ANSWERS:
        raise bad(f"'answers' must be an object of at most {MOST_ANSWERS} answers by the ids of their questions.")
    return {whole_text("answers", id_): _answer(one) for id_, one in given.items()}


def _answer(given: object) -> Answer:
    action = given.get("action") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(action, str) or action not in _OUTCOMES:
        raise bad(f"An answer must be an object with an 'action': {', '.join(_OUTCOMES)}.")
    refuse_unknown(given, ("action", "content"))
    content = given.get("content")
    if content is not None and not isinstance(content, dict):
        raise bad("'content' must be an object: the fields of the form.")
    if size_of(content or {}) > (most := QuestionLimits().answer_characters):
        raise bad(f"'content' has more than {most} characters. Send a shorter answer.")
    return Answer(_OUTCOMES[action], content if action == "accept" else None)


def thread_title(body: Mapping[str, Any]) -> str | None:
    """The title in the body of a `POST …/threads` or a `PATCH`.

    Raises:
        CallRefusedError: `bad_input`.
    """
    refuse_unknown(body, ("title",))
    if (title := body.get("title")) is None:
        return None
    if len(whole_text("title", title)) > LONGEST_TITLE:
        raise bad(f"'title' must have at most {LONGEST_TITLE} characters.")
    return str(title)


def turn_number(given: str) -> int:
    """The number of a turn in a path.

    Raises:
        ThreadNotFoundError: no turn can have it.
    """
    from pallas_gateway.threads.records import ThreadNotFoundError  # noqa: PLC0415  the console needs no threads

    if not _NUMBER.fullmatch(given) or int(given) > LAST_TURN:
        raise ThreadNotFoundError("no such turn")
    return int(given)


def rating(body: Mapping[str, Any]) -> tuple[Rating, str]:
    """The rating and the note in the body of a `PUT …/feedback`; raises as `page`."""
    refuse_unknown(body, ("rating", "note"))
    given = next((one for one in RATINGS if one == body.get("rating")), None)
    if given is None:
        raise bad(f"'rating' must be one of: {', '.join(RATINGS)}.")
    note = whole_text("note", body.get("note", ""))
    if len(note) > LONGEST_NOTE:
        raise bad(f"'note' must have at most {LONGEST_NOTE} characters.")
    return given, note


def last_turn(body: Mapping[str, Any]) -> int:
    """The number of the last turn that a copy of a thread has, from the body of a `POST …/fork`; raises as `page`."""
    refuse_unknown(body, ("turns",))
    last = body.get("turns", LAST_TURN)
    if isinstance(last, bool) or not isinstance(last, int) or not 0 <= last <= LAST_TURN:
        raise bad(f"'turns' must be a whole number from 0 to {LAST_TURN}.")
    return last


def page(request: Request, *others: str) -> int:
    """The `limit` of a list; `others` are the query's other parameters.

    Raises:
        CallRefusedError: `bad_input`.
    """
    refuse_unknown(dict(request.query_params), ("limit", *others), what="parameter")
    return whole_number(request, "limit", DEFAULT_LIMIT, least=1, most=MOST)


def after_turn(request: Request) -> int:
    """The turn before the first of a page of messages; raises as `page`."""
    return whole_number(request, "after", 0, least=0, most=LAST_TURN)


def wanted_threads(request: Request) -> WantedThreads:
    """The page of threads that a query asks for; raises as `page`."""
    from pallas_gateway.threads.records import WantedThreads  # noqa: PLC0415  as above

    limit, search = page(request, "cursor", "search", "rated"), request.query_params.get("search") or None
    if search is not None and len(whole_text("search", search)) > LONGEST_SEARCH:
        raise bad(f"'search' must have at most {LONGEST_SEARCH} characters.")
    return WantedThreads(limit, cursor(request), search, query_switch(request, "rated"))


def with_tools(request: Request) -> bool:
    """Return true if a page of messages has the tool calls and their results; raises as `page`."""
    return query_switch(request, "tools")


def cursor(request: Request) -> Position | None:
    """The start of a page of threads; raises as `page`."""
    given = request.query_params.get("cursor")
    if given is None:
        return None
    if not CURSOR.fullmatch(given):
        raise bad("'cursor' must be the `nextCursor` of a page before.")
    milliseconds, thread_id, *turn = given.split(".")
    place = int(milliseconds), thread_id
    return (*place, int(turn[0])) if turn else place
