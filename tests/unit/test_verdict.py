"""From probes to one word and one sentence."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pallas_gateway.health.probe import ProbeResult
from pallas_gateway.health.verdict import WORTH, Verdict, cannot_take_calls, judge

NOW = datetime(2026, 11, 3, 12, 0, 5, 250000, UTC)
TOOLS = ProbeResult("tools", 0.01234, protocol="initialize")
GRAPH = ProbeResult("graph", 3.0, error="no answer within 3 s")
NOTES = ProbeResult("notes", 0.001, error="HTTP 401")
SHARED = ProbeResult("shared", 0.002)  # reachable, but refused to talk without a caller's token


@pytest.mark.parametrize(
    ("probes", "status", "message"),
    [
        ([], "ok", None),
        ([TOOLS], "ok", None),
        ([TOOLS, SHARED], "ok", None),
        ([GRAPH], "degraded", "Unreachable: graph"),
        ([TOOLS, GRAPH, NOTES], "degraded", "Unreachable: graph, notes"),
    ],
)
def test_an_agent_is_as_well_as_what_it_reaches(probes: list[ProbeResult], status: str, message: str | None) -> None:
    verdict = judge(probes)
    assert (verdict.status, verdict.message, verdict.probes) == (status, message, tuple(probes))


def test_a_slow_answer_in_time_is_ok() -> None:
    assert judge([ProbeResult("tools", 2.99, protocol="initialize")]).status == "ok"


def test_an_agent_that_cannot_take_calls_is_an_error_with_the_reason() -> None:
    assert cannot_take_calls("no key") == Verdict("error", "no key")


@pytest.mark.parametrize(
    ("verdict", "document"),
    [
        (Verdict("ok"), {"status": "ok"}),
        (Verdict("error", "no key"), {"status": "error", "message": "no key"}),
        (
            judge([TOOLS, GRAPH, SHARED]),
            {
                "status": "degraded",
                "message": "Unreachable: graph",
                "downstream": [
                    {"name": "tools", "status": "ok", "seconds": 0.012, "protocol": "initialize"},
                    {"name": "graph", "status": "unreachable", "seconds": 3.0, "error": "no answer within 3 s"},
                    {"name": "shared", "status": "ok", "seconds": 0.002},
                ],
            },
        ),
    ],
)
def test_the_document_says_all_of_it(verdict: Verdict, document: dict[str, Any]) -> None:
    assert verdict.document(NOW) == {"timestamp": "2026-11-03T12:00:05.250000Z", **document}


def test_each_word_is_worth_what_the_metric_documents() -> None:
    assert WORTH == {"ok": 1.0, "degraded": 0.5, "error": 0.0}
