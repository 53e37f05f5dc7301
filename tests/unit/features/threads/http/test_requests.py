"""What a request to the API of threads asks for, read from its headers and its query."""

import pytest
from starlette.requests import Request

from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.doors.api.models import query
from pallas_gateway.doors.api.requests import wants_events
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.features.threads.http.models import MessagesQuery, ThreadsQuery
from pallas_gateway.features.threads.http.requests import wanted_threads
from pallas_gateway.features.threads.records import WantedThreads

ID = "0123456789abcdef" * 2


def request(query: str = "", accept: str | None = None) -> Request:
    headers = [] if accept is None else [(b"accept", accept.encode())]
    return Request({"type": "http", "query_string": query.encode(), "headers": headers})


@pytest.mark.parametrize(
    ("accept", "events"),
    [
        (None, False),
        ("*/*", False),
        ("application/json", False),
        ("text/event-stream", True),
        ("TEXT/Event-Stream; charset=utf-8", True),
        ("application/json, text/event-stream", True),
        ("application/json;q=0.9, text/event-stream;q=0.5", False),
        ("text/*", True),
        ("text/event-stream;q=0, */*", False),
        ("text/event-stream;q=much, */*;q=0.1", False),
    ],
)
def test_accept_decides_between_json_and_events(accept: str | None, events: bool) -> None:
    assert wants_events(request(accept=accept)) is events


@pytest.mark.parametrize("accept", ["text/html", "image/*", "*/*;q=0", "text/event-stream;q=0"])
def test_who_takes_neither_is_refused(accept: str) -> None:
    with pytest.raises(ApiError, match="application/json or text/event-stream"):
        wants_events(request(accept=accept))


def test_pages_are_of_the_size_and_from_the_place_that_is_asked_for() -> None:
    assert query(ThreadsQuery, request()).limit == query(MessagesQuery, request()).limit == 50
    asked = query(ThreadsQuery, request(f"limit=200&cursor=1700000000000.{ID}&rated=true&search="))
    assert wanted_threads(asked) == WantedThreads(200, (1_700_000_000_000, ID), None, True)
    assert query(MessagesQuery, request("after=2147483647")).after == 2_147_483_647


@pytest.mark.parametrize(
    "asked", ["limit=0", "limit=201", "limit=-1", "limit=1.0", "limit=", "limit=01", "limit=1&limit=2", "size=1"]
)
def test_other_pages_are_refused(asked: str) -> None:
    with pytest.raises(CallRefusedError, match=r"^('limit' must|Parameter 'limit' is given twice|Unknown parameter)"):
        query(ThreadsQuery, request(asked))


@pytest.mark.parametrize("given", ["", "x", f"1.{ID}0", f"-1.{ID}", f"{10**16}.{ID}"])
def test_a_cursor_that_no_page_gave_is_refused(given: str) -> None:
    with pytest.raises(CallRefusedError, match="nextCursor"):
        query(ThreadsQuery, request(f"cursor={given}"))
