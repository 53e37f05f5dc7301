"""The running calls of a process."""

from contextlib import suppress

from pallas_gateway.hosting.running_calls import RunningCalls


def test_a_call_is_counted_for_as_long_as_it_runs_also_when_it_fails() -> None:
    running = RunningCalls()
    with suppress(ValueError), running.one_more(), running.one_more():
        assert len(running) == 2
        raise ValueError
    assert len(running) == 0
