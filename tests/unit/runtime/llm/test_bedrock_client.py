"""What a server of Bedrock sends too much of, or does not end; without a server, because both take long."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from urllib3.exceptions import ReadTimeoutError

from pallas_gateway.errors import CallFailedError
from pallas_gateway.limits import LARGEST_ERROR_BYTES
from pallas_gateway.runtime.llm.bedrock_client import _events, _limited

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE = b"x" * 65_536


class Response:
    """As urllib3 has them, as far as it matters."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def endless() -> Iterator[bytes]:
    return itertools.repeat(PIECE)


def test_an_error_without_an_end_is_cut_off() -> None:
    response = Response(400)

    assert sum(map(len, _limited(response, endless))) == LARGEST_ERROR_BYTES
    assert response.is_closed


def test_an_answer_without_an_end_is_refused() -> None:
    response = Response(200)

    with pytest.raises(CallFailedError, match="its provider sent more than"):
        list(_limited(response, endless))
    assert response.is_closed


class Stream:
    """Events of an answer, and then silence."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._events = events
        self.is_closed = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self._events
        raise ReadTimeoutError(None, "", "Read timed out.")  # type: ignore[arg-type]

    def close(self) -> None:
        self.is_closed = True


def test_an_answer_whose_body_does_not_end_is_whole_after_its_last_event() -> None:
    stream = Stream({"messageStart": {}}, {"messageStop": {}}, {"metadata": {}})

    assert [*_events(stream)] == [{"messageStart": {}}, {"messageStop": {}}, {"metadata": {}}]
    assert stream.is_closed


def test_silence_before_the_last_event_is_a_failure() -> None:
    with pytest.raises(TimeoutError, match="silent"):
        list(_events(Stream({"messageStart": {}})))
