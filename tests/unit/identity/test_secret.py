"""A secret stays one, whatever prints it; and what counts as a bearer token."""

import dataclasses
import json
import logging
import pprint
import traceback
from collections.abc import Callable

import pytest

from pallas_gateway.calls.call import Call, Credentials, Message
from pallas_gateway.identity.caller import Caller
from pallas_gateway.identity.secret import Secret, bearer_of
from pallas_gateway.telemetry.logs import HumanFormatter, JsonFormatter

VALUE = "hunter2-very-secret"
HOLDERS = {
    "secret": Secret(VALUE),
    "credentials": Credentials(Secret(VALUE), Secret(VALUE)),
    "caller": Caller("ann", Secret(VALUE)),
    "call": Call("echo", Message("user", "hi"), caller=Caller("ann", Secret(VALUE))),
    "list": [Secret(VALUE)],
}
RECORD = logging.makeLogRecord({"name": "pallas.test", "levelno": logging.INFO, "levelname": "INFO"})


def logged(formatter: logging.Formatter, holder: object) -> str:
    record = logging.makeLogRecord({**vars(RECORD), "msg": "seen %s %r", "args": (holder, holder), "held": holder})
    return formatter.format(record)


def raised(holder: object) -> str:
    try:
        raise ValueError(f"bad {holder}", holder)
    except ValueError as error:
        return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


WAYS: dict[str, Callable[[object], str]] = {
    "repr": repr,
    "str": str,
    "format": lambda holder: f"{holder} {holder!r} {holder!a} {holder!s:>40}",
    "percent": lambda holder: "%s %r" % (holder, holder),  # noqa: UP031  one of the ways
    "pprint": pprint.pformat,
    "json default=str": lambda holder: json.dumps({"held": holder}, default=str),
    "json log": lambda holder: logged(JsonFormatter(), holder),
    "human log": lambda holder: logged(HumanFormatter(), holder),
    "traceback with locals": raised,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("holder", HOLDERS)
def test_nothing_that_holds_a_secret_shows_it(holder: str, way: str) -> None:
    shown = WAYS[way](HOLDERS[holder])
    assert shown
    assert VALUE not in shown


def test_a_dataclass_taken_apart_still_holds_a_secret() -> None:
    parts = dataclasses.asdict(Caller("ann", Secret(VALUE)))
    assert VALUE not in repr(parts)
    assert parts["bearer"].reveal() == VALUE


def test_a_secret_has_no_attributes_to_dump() -> None:
    with pytest.raises(TypeError):
        vars(Secret(VALUE))


def test_secrets_are_equal_by_value_and_to_nothing_else() -> None:
    assert Secret(VALUE) == Secret(VALUE)
    assert hash(Secret(VALUE)) == hash(Secret(VALUE))
    assert Secret(VALUE) != Secret("other")
    assert Secret(VALUE) != VALUE
    assert Secret("ä") != Secret("ö")


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer abc", "abc"),
        ("BEARER   abc ", "abc"),
        ("Bearer a b", "a b"),
        ("Basic abc", None),
        ("Bearerabc", None),
        ("Bearer", None),
        ("Bearer  ", None),
        ("abc", None),
        ("", None),
        (None, None),
    ],
)
def test_a_bearer_token_is_what_follows_the_scheme(header: str | None, token: str | None) -> None:
    found = bearer_of(header)
    assert (found.reveal() if found else None) == token
