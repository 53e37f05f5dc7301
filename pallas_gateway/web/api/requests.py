"""Read the parts of a request that all subjects share: the JSON body, the query, and the header `Accept`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

from pallas_gateway.calls.conversation import is_text
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.json_size import TOO_MANY_VALUES, has_too_many_values
from pallas_gateway.telemetry.redaction import quoted
from pallas_gateway.web import accept, bodies
from pallas_gateway.web.api.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from starlette.requests import Request

    from pallas_gateway.identity.caller import Caller

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_JSON, _EVENTS = "application/json", "text/event-stream"


async def read(request: Request, limit: int, *types: str) -> bytes:
    """The body of a request, sent as JSON or as one of the `types`, which are JSON, too.

    Raises:
        ApiError: `body_too_large`, or `not_json` for another content type.
    """
    is_json = bodies.is_json(request.headers, *types)
    body = await bodies.read(request, limit)
    if body is None:
        raise ApiError(f"The body is larger than {limit} bytes.", reason="body_too_large")
    if has_too_many_values(body):
        raise ApiError(TOO_MANY_VALUES, reason="body_too_large")
    # A browser sends a request without a body to another site without a CORS preflight, with an `Origin`.
    if not is_json and (body or "content-type" in request.headers or "origin" in request.headers):
        raise ApiError("Send the body as application/json (Content-Type).", reason="not_json")
    return body


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; an empty object if there is no body.

    Raises:
        CallRefusedError: `bad_input`.
    """
    if not body:
        return {}
    try:
        found = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise bad("The body is no JSON.") from None
    if not isinstance(found, dict):
        raise bad("The body must be a JSON object.")
    return found


def flag(body: Mapping[str, Any], key: str) -> bool:
    """A switch of a body, off if it is not given; raises as `json_object`."""
    if not isinstance(value := body.get(key, False), bool):
        raise bad(f"'{key}' must be true or false.")
    return value


def no_parameters(request: Request) -> None:
    """Refuse a query with parameters; raises as `json_object`."""
    refuse_unknown(dict(request.query_params), (), what="parameter")


def whole_number(request: Request, key: str, default: int, *, least: int, most: int) -> int:
    """A number of a query; raises as `json_object`."""
    values = request.query_params.getlist(key)
    if not values:
        return default
    number = int(values[0]) if len(values) == 1 and _NUMBER.fullmatch(values[0]) else -1
    if not least <= number <= most:
        raise bad(f"'{key}' must be a whole number from {least} to {most}.")
    return number


def query_switch(request: Request, key: str) -> bool:
    """A switch of a query, off if it is not given; raises as `json_object`."""
    if (value := request.query_params.get(key, "false")) not in {"true", "false"}:
        raise bad(f"'{key}' must be true or false.")
    return value == "true"


def whole_text(key: str, value: object) -> str:
    """The text at a key; raises as `json_object`."""
    if not isinstance(value, str):
        raise bad(f"'{key}' must be a string.")
    if not is_text(value) or "\0" in value:
        raise bad(f"'{key}' holds NUL or half a surrogate pair; send whole text.")
    return value


def refuse_unknown(given: Collection[str], known: Collection[str], *, what: str = "key") -> None:
    """Refuse names that are not known; raises as `json_object`."""
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise bad(f"Unknown {what} {quoted(unknown)}. Known are: {', '.join(known) or 'none'}.")


def parameters(request: Request, *known: str) -> dict[str, str]:
    """The parameters of a query, each given once; raises as `json_object`."""
    refuse_unknown(dict(request.query_params), known, what="parameter")
    given = request.query_params.multi_items()
    if len(found := dict(given)) < len(given):
        twice = next(name for name in found if len(request.query_params.getlist(name)) > 1)
        raise bad(f"Parameter '{twice}' is given twice.")
    return found


def bad(why: str) -> CallRefusedError:
    """The error of input that is not as documented: `bad_input`."""
    return CallRefusedError(why, reason="bad_input")


def owner_of(caller: Caller) -> str:
    """Return whose the threads and agents of a caller are; raises `ApiError` if the token names none."""
    if caller.owner is None:
        message = "The token does not say whose it is (no 'sub', 'client_id' or 'azp'), so it cannot own anything here."
        raise ApiError(message, reason="no_owner")
    return caller.owner


def wants_events(request: Request) -> bool:
    """Return true if the client prefers server-sent events to JSON (RFC 9110, section 12.5.1).

    Raises:
        ApiError: `not_acceptable`: the client accepts neither.
    """
    if not (ranges := accept.weights(request)):
        return False
    events, as_json = accept.weight_of(ranges, _EVENTS), accept.weight_of(ranges, _JSON)
    if max(events, as_json) <= 0:
        raise ApiError(f"This answers with {_JSON} or {_EVENTS}.", reason="not_acceptable")
    return events > as_json or (events == as_json and _EVENTS in ranges)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)  # JSON has no NaN and no Infinity
