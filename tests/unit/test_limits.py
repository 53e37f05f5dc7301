"""Limits that tests make ample, so that a busy machine fails none: those of the product are these."""

from pallas_gateway.limits import DatabaseLimits


def test_a_call_waits_seconds_for_a_database_that_does_not_answer() -> None:
    limits = DatabaseLimits()
    assert limits.count_seconds == {"postgresql": 1.5, "sqlite": 5.0}
    assert limits.use_seconds == 3.0
