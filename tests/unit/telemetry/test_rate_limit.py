"""Refused callers: all counted, each reason said once a minute."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from pallas_gateway.telemetry.metrics import AUTH_REFUSALS, Metrics
from pallas_gateway.telemetry.rate_limit import QUIET_SECONDS, OncePerMinute, RefusalLog


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_refusal_is_counted_and_each_reason_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pallas.identity")
    clock, metrics = Clock(), Metrics(CollectorRegistry())
    refusals = RefusalLog(metrics, clock)
    for _ in range(5):
        refusals.record("invalid_token", "the token has expired", client="192.0.2.7")
    refusals.record("no_grant", "the token has no grant for agent 'echo'", client="192.0.2.8", caller="ci")
    clock.now = QUIET_SECONDS
    refusals.record("invalid_token", "the token has expired", client="192.0.2.9")

    said = [(vars(r)["why"], vars(r)["client"], vars(r).get("more_since_last")) for r in caplog.records]
    assert said == [
        ("the token has expired", "192.0.2.7", None),
        ("the token has no grant for agent 'echo'", "192.0.2.8", None),
        ("the token has expired", "192.0.2.9", 4),
    ]
    assert vars(caplog.records[1])["caller"] == "ci"
    counts = {
        reason: metrics.registry.get_sample_value("pallas_auth_refused_total", {"reason": reason})
        for reason in AUTH_REFUSALS
    }
    assert counts == {**dict.fromkeys(AUTH_REFUSALS, 0), "invalid_token": 6, "no_grant": 1}


def test_a_library_that_warns_of_each_request_is_heard_once_a_minute() -> None:
    clock, heard = Clock(), list[logging.LogRecord]()
    once = OncePerMinute(clock)

    def warn(level: int = logging.WARNING) -> None:
        record = logging.LogRecord("mcp", level, "", 0, "requestState rejected on %s: %s", ("any", "expired"), None)
        if once.filter(record):
            heard.append(record)

    for _ in range(5):
        warn()
    warn(logging.ERROR)
    clock.now = QUIET_SECONDS
    warn()
    assert [(one.levelno, vars(one).get("more_since_last")) for one in heard] == [
        (logging.WARNING, None),
        (logging.ERROR, None),
        (logging.WARNING, 4),
    ]


def test_a_client_that_only_begins_to_log_in_is_counted_and_not_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    metrics = Metrics(CollectorRegistry())
    RefusalLog(metrics).record("no_token", "a bearer token is needed", client="192.0.2.7")
    assert caplog.records == []
    assert metrics.registry.get_sample_value("pallas_auth_refused_total", {"reason": "no_token"}) == 1
