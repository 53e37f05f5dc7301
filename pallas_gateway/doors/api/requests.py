"""Read the parts of a request that all subjects share: the JSON body, and the header `Accept`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.doors.http import bodies
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.json_size import TOO_MANY_VALUES, has_too_many_values

if TYPE_CHECKING:
    from starlette.requests import Request

    from pallas_gateway.identity.caller import Caller

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
    if not (ranges := weights(request)):
        return False
    events, as_json = weight_of(ranges, _EVENTS), weight_of(ranges, _JSON)
    if max(events, as_json) <= 0:
        raise ApiError(f"This answers with {_JSON} or {_EVENTS}.", reason="not_acceptable")
    return events > as_json or (events == as_json and _EVENTS in ranges)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)  # JSON has no NaN and no Infinity


def weights(request: Request) -> dict[str, float]:
    """Return the media ranges of the header in lower case, with their weights from 0 to 1; 0 if one is malformed."""
    found: dict[str, float] = {}
    for part in request.headers.get("accept", "").split(","):
        name, *parameters = (one.strip().lower() for one in part.split(";"))
        given = next((one[2:] for one in parameters if one.startswith("q=")), "1")
        try:
            weight = float(given)
        except ValueError:
            weight = 0.0
        if name:
            found[name] = max(min(weight, 1.0) if weight > 0 else 0.0, found.get(name, 0.0))
    return found


def weight_of(ranges: dict[str, float], media_type: str) -> float:
    """Return the weight of a type: that of the most specific range that matches, 0 without one."""
    patterns = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
    return next((ranges[one] for one in patterns if one in ranges), 0.0)
