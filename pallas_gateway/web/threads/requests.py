"""A request's body, query and headers as validated values. `openapi.py` describes the same values to clients."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pallas_gateway.calls.conversation import (
    NOTHING_SKIPPED,
    Skipped,
    current_message,
    history_rows,
    is_text,
    parse_history,
    refuse_too_many,
)
from pallas_gateway.calls.forms import size_of
from pallas_gateway.calls.parameters import NO_PARAMETERS, Parameters, parse
from pallas_gateway.calls.questions import Answer
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.json_size import TOO_MANY_VALUES, has_too_many_values
from pallas_gateway.limits import QuestionLimits
from pallas_gateway.telemetry.redaction import quoted
from pallas_gateway.web import bodies
from pallas_gateway.web.threads.errors import ThreadsApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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
_JSON, _EVENTS = "application/json", "text/event-stream"


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


async def read(request: Request, limit: int, *types: str) -> bytes:
    """The body of a request, sent as JSON or as one of the `types`, which are JSON, too.

    Raises:
        ThreadsApiError: `body_too_large`, or `not_json` for another content type.
    """
    is_json = bodies.is_json(request.headers, *types)
    body = await bodies.read(request, limit)
    if body is None:
        raise ThreadsApiError(f"The body is larger than {limit} bytes.", reason="body_too_large")
    if has_too_many_values(body):
        raise ThreadsApiError(TOO_MANY_VALUES, reason="body_too_large")
    # A browser sends a request without a body to another site without a CORS preflight, with an `Origin`.
    if not is_json and (body or "content-type" in request.headers or "origin" in request.headers):
        raise ThreadsApiError("Send the body as application/json (Content-Type).", reason="not_json")
    return body


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; an empty object if there is no body.

    Raises:
        ThreadsApiError: `bad_input`.
    """
    if not body:
        return {}
    try:
        found = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ThreadsApiError("The body is no JSON.") from None
    if not isinstance(found, dict):
        raise ThreadsApiError("The body must be a JSON object.")
    return found


def chat_request(body: Mapping[str, Any], settings: AgentSettings, *, max_entries: int) -> TurnRequest:
    """The body of a chat request.

    Raises:
        CallRefusedError: `bad_input`, `bad_params` or `bad_image`.
    """
    _refuse_unknown(body, _CHAT_KEYS)
    thread_id = body.get("threadId")
    if thread_id is not None and not (isinstance(thread_id, str) and THREAD_ID.fullmatch(thread_id)):
        raise _bad("'threadId' must be the id of a thread, 32 hexadecimal digits.")
    _check_replaced(body.get("replaces"), thread_id)
    if "message" not in body:
        raise _bad("'message' is required.")
    text = _text("message", body["message"])
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
        raise _bad(f"'replaces' must be the number of a turn, from 1 to {LAST_TURN}.")
    if thread_id is None:
        raise _bad("'replaces' takes a 'threadId': the thread of that turn.")


def given_answers(body: Mapping[str, Any]) -> dict[str, Answer]:
    """The answers in the body of a `POST …/answers`, by question; none may be given.

    Raises:
        CallRefusedError: `bad_input`.
    """
    _refuse_unknown(body, ("answers", *SWITCHES))
    for switch in SWITCHES:
        flag(body, switch)
    given = body.get("answers")
    if not isinstance(given, dict) or len(given) > MOST_ANSWERS:
        raise _bad(f"'answers' must be an object of at most {MOST_ANSWERS} answers by the ids of their questions.")
    return {_text("answers", id_): _answer(one) for id_, one in given.items()}


def flag(body: Mapping[str, Any], key: str) -> bool:
    """A switch of a body, off if it is not given; raises as `given_answers`."""
    if not isinstance(value := body.get(key, False), bool):
        raise _bad(f"'{key}' must be true or false.")
    return value


def _answer(given: object) -> Answer:
    action = given.get("action") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(action, str) or action not in _OUTCOMES:
        raise _bad(f"An answer must be an object with an 'action': {', '.join(_OUTCOMES)}.")
    _refuse_unknown(given, ("action", "content"))
    content = given.get("content")
    if content is not None and not isinstance(content, dict):
        raise _bad("'content' must be an object: the fields of the form.")
    if size_of(content or {}) > (most := QuestionLimits().answer_characters):
        raise _bad(f"'content' has more than {most} characters. Send a shorter answer.")
    return Answer(_OUTCOMES[action], content if action == "accept" else None)


def thread_title(body: Mapping[str, Any]) -> str | None:
    """The title in the body of a `POST …/threads` or a `PATCH`.

    Raises:
        CallRefusedError: `bad_input`.
    """
    _refuse_unknown(body, ("title",))
    if (title := body.get("title")) is None:
        return None
    if len(_text("title", title)) > LONGEST_TITLE:
        raise _bad(f"'title' must have at most {LONGEST_TITLE} characters.")
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
    _refuse_unknown(body, ("rating", "note"))
    given = next((one for one in RATINGS if one == body.get("rating")), None)
    if given is None:
        raise _bad(f"'rating' must be one of: {', '.join(RATINGS)}.")
    note = _text("note", body.get("note", ""))
    if len(note) > LONGEST_NOTE:
        raise _bad(f"'note' must have at most {LONGEST_NOTE} characters.")
    return given, note


def last_turn(body: Mapping[str, Any]) -> int:
    """The number of the last turn that a copy of a thread has, from the body of a `POST …/fork`; raises as `page`."""
    _refuse_unknown(body, ("turns",))
    last = body.get("turns", LAST_TURN)
    if isinstance(last, bool) or not isinstance(last, int) or not 0 <= last <= LAST_TURN:
        raise _bad(f"'turns' must be a whole number from 0 to {LAST_TURN}.")
    return last


def no_parameters(request: Request) -> None:
    """Refuse a query with parameters; raises as `page`."""
    _refuse_unknown(dict(request.query_params), (), what="parameter")


def page(request: Request, *others: str) -> int:
    """The `limit` of a list; `others` are the query's other parameters.

    Raises:
        CallRefusedError: `bad_input`.
    """
    _refuse_unknown(dict(request.query_params), ("limit", *others), what="parameter")
    return _whole_number(request, "limit", DEFAULT_LIMIT, least=1, most=MOST)


def after_turn(request: Request) -> int:
    """The turn before the first of a page of messages; raises as `page`."""
    return _whole_number(request, "after", 0, least=0, most=LAST_TURN)


def wanted_threads(request: Request) -> WantedThreads:
    """The page of threads that a query asks for; raises as `page`."""
    from pallas_gateway.threads.records import WantedThreads  # noqa: PLC0415  as above

    limit, search = page(request, "cursor", "search", "rated"), request.query_params.get("search") or None
    if search is not None and len(_text("search", search)) > LONGEST_SEARCH:
        raise _bad(f"'search' must have at most {LONGEST_SEARCH} characters.")
    return WantedThreads(limit, cursor(request), search, _switch(request, "rated"))


def with_tools(request: Request) -> bool:
    """Return true if a page of messages has the tool calls and their results; raises as `page`."""
    return _switch(request, "tools")


def cursor(request: Request) -> Position | None:
    """The start of a page of threads; raises as `page`."""
    given = request.query_params.get("cursor")
    if given is None:
        return None
    if not CURSOR.fullmatch(given):
        raise _bad("'cursor' must be the `nextCursor` of a page before.")
    milliseconds, thread_id, *turn = given.split(".")
    place = int(milliseconds), thread_id
    return (*place, int(turn[0])) if turn else place


def wants_events(request: Request) -> bool:
    """Return true if the client prefers server-sent events to JSON (RFC 9110, section 12.5.1).

    Raises:
        ThreadsApiError: `not_acceptable`: the client accepts neither.
    """
    ranges = [_range(one) for one in request.headers.get("accept", "").split(",") if one.strip()]
    if not ranges:
        return False
    events, as_json = _quality(ranges, _EVENTS), _quality(ranges, _JSON)
    if max(events, as_json) <= 0:
        raise ThreadsApiError(f"This answers with {_JSON} or {_EVENTS}.", reason="not_acceptable")
    return events > as_json or (events == as_json and any(name == _EVENTS for name, _ in ranges))


def _range(one: str) -> tuple[str, float]:
    name, *parameters = (part.strip().lower() for part in one.split(";"))
    quality = next((part[2:] for part in parameters if part.startswith("q=")), "1")
    try:
        return name, float(quality)
    except ValueError:
        return name, 0.0


def _quality(ranges: list[tuple[str, float]], wanted: str) -> float:
    """The quality of the most specific range that matches."""
    for pattern in (wanted, f"{wanted.partition('/')[0]}/*", "*/*"):
        found = [quality for name, quality in ranges if name == pattern]
        if found:
            return max(found)
    return 0.0


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)  # JSON has no NaN and no Infinity


def _refuse_unknown(given: Collection[str], known: Collection[str], *, what: str = "key") -> None:
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise _bad(f"Unknown {what} {quoted(unknown)}. Known are: {', '.join(known) or 'none'}.")


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _bad(f"'{key}' must be a string.")
    if not is_text(value) or "\0" in value:
        raise _bad(f"'{key}' holds NUL or half a surrogate pair; send whole text.")
    return value


def _switch(request: Request, key: str) -> bool:
    if (value := request.query_params.get(key, "false")) not in {"true", "false"}:
        raise _bad(f"'{key}' must be true or false.")
    return value == "true"


def _whole_number(request: Request, key: str, default: int, *, least: int, most: int) -> int:
    values = request.query_params.getlist(key)
    if not values:
        return default
    number = int(values[0]) if len(values) == 1 and _NUMBER.fullmatch(values[0]) else -1
    if not least <= number <= most:
        raise _bad(f"'{key}' must be a whole number from {least} to {most}.")
    return number


def _bad(why: str) -> CallRefusedError:
    return CallRefusedError(why, reason="bad_input")
