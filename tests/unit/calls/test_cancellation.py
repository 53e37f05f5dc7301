"""Who can cancel which call: only the very client that made it."""

from dataclasses import replace
from typing import Any

import pytest

from pallas_gateway.calls.cancellation import Cancellations, RequestKey
from pallas_gateway.identity.secret import Secret
from tests.support.memory_runtime import a_call

CALL = a_call()
KEY = RequestKey.of("harper", "session-1", Secret("token-1"), 7)


def test_a_request_is_cancelled_by_its_own_key() -> None:
    cancellations, heard = Cancellations(), list[str]()
    same_key = RequestKey.of("harper", "session-1", Secret("token-1"), 7)

    with cancellations.listening(KEY, CALL, lambda: heard.append("stop")):
        assert cancellations.cancel(same_key) == (CALL,)

    assert heard == ["stop"]


@pytest.mark.parametrize(
    "other",
    [
        {"endpoint": "jarvis"},
        {"session": RequestKey.of("harper", "session-2", None, 7).session},
        {"bearer": RequestKey.of("harper", "session-1", Secret("token-2"), 7).bearer},
        {"bearer": None},
        {"request_id": RequestKey.of("harper", "session-1", None, 8).request_id},
        {"request_id": RequestKey.of("harper", "session-1", None, "7").request_id},
    ],
    ids=str,
)
def test_a_request_is_cancelled_by_no_other_key(other: dict[str, Any]) -> None:
    cancellations, heard = Cancellations(), list[str]()

    with cancellations.listening(KEY, CALL, lambda: heard.append("stop")):
        assert not cancellations.cancel(replace(KEY, **other))

    assert heard == []


def test_a_client_without_a_session_cannot_cancel() -> None:
    cancellations = Cancellations()

    with cancellations.listening(None, CALL, pytest.fail):
        assert len(cancellations) == 0


def test_a_finished_request_is_forgotten_even_if_it_failed() -> None:
    cancellations = Cancellations()

    def fail() -> None:
        with cancellations.listening(KEY, CALL, pytest.fail):
            assert len(cancellations) == 1
            raise ValueError("the call failed")

    with pytest.raises(ValueError, match="the call failed"):
        fail()
    assert len(cancellations) == 0
    assert not cancellations.cancel(KEY)


def test_two_requests_with_one_key_are_both_cancelled_and_forgotten_one_by_one() -> None:
    cancellations, heard = Cancellations(), list[str]()

    with cancellations.listening(KEY, CALL, lambda: heard.append("outer")):
        with cancellations.listening(KEY, CALL, lambda: heard.append("inner")):
            assert cancellations.cancel(KEY)
        assert cancellations.cancel(KEY)

    assert heard == ["outer", "inner", "outer"]
    assert len(cancellations) == 0


def test_a_request_that_ends_while_it_is_being_cancelled_does_no_harm() -> None:
    cancellations = Cancellations()
    listening = cancellations.listening(KEY, CALL, lambda: listening.__exit__(None, None, None))
    listening.__enter__()

    assert cancellations.cancel(KEY)
    assert len(cancellations) == 0


def test_a_key_shows_no_token() -> None:
    assert "token-1" not in repr(KEY)
