"""Which running call made a request: known by a token that lives as long as that call."""

import pytest

from pallas_gateway.calls.nesting import RunningCalls
from tests.support.memory_runtime import a_call


def test_a_token_names_its_call_for_as_long_as_the_call_runs() -> None:
    running, call = RunningCalls(), a_call()

    with running.token_for(call) as token:
        assert running.parent_of(token.reveal()) is call
        assert len(running) == 1

    assert running.parent_of(token.reveal()) is None
    assert len(running) == 0


def test_a_failing_call_takes_its_token_with_it() -> None:
    running = RunningCalls()
    with pytest.raises(ValueError, match="broken"), running.token_for(a_call()) as token:
        raise ValueError("broken")
    assert running.parent_of(token.reveal()) is None


def test_each_call_has_a_token_of_its_own_even_when_it_is_the_same_call() -> None:
    running, call, other = RunningCalls(), a_call(), a_call()
    with running.token_for(call) as one, running.token_for(call) as again, running.token_for(other) as another:
        assert len({one.reveal(), again.reveal(), another.reveal()}) == 3
        assert running.parent_of(another.reveal()) is other


@pytest.mark.parametrize("token", [None, "", "made-up", "Secret(****)"])
def test_no_token_or_a_made_up_one_names_nobody(token: str | None) -> None:
    running = RunningCalls()
    with running.token_for(a_call()):
        assert running.parent_of(token) is None


def test_a_token_is_too_long_to_guess() -> None:
    with RunningCalls().token_for(a_call()) as token:
        assert len(token.reveal()) >= 43  # 256 bits in base64
