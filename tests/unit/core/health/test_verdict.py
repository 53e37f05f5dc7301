"""From state, probes and provider to one word and one sentence."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pallas_gateway.core.health.probe import ProbeResult
from pallas_gateway.core.health.verdict import WORTH, Life, LlmResult, Verdict, Word, document_of_all, judge

NOW = datetime(2026, 11, 3, 12, 0, 5, 250000, UTC)
THEN = datetime(2026, 11, 3, 11, 0, tzinfo=UTC)
READY = Life("ready", THEN)
FAILED = Life("failed", THEN, "no key")
LATE, UNCHECKED = "no answer within 3 s", "there is no check for this provider"
TOOLS = ProbeResult("tools", 0.01234, protocol="initialize", since=THEN)
GRAPH = ProbeResult("graph", 3.0, error=LATE, since=NOW)
NOTES = ProbeResult("notes", 0.001, error="HTTP 401")
SHARED = ProbeResult("shared", 0.002)  # reachable, but refused to talk without a caller's token
LLM = LlmResult("openai", "gpt-x", "ok", None, THEN)
LLM_WRONG = LlmResult("openai", "bad-model", "failed", "model 'bad-model' not found", THEN)
LLM_UNKNOWN = LlmResult("azure", "gpt-x", "not checked", UNCHECKED, THEN)


@pytest.mark.parametrize(
    ("probes", "llm", "status", "message"),
    [
        ([], None, "ok", None),
        ([TOOLS], LLM, "ok", None),
        ([TOOLS, SHARED], LLM_UNKNOWN, "ok", None),
        ([GRAPH], LLM, "degraded", "Unreachable: graph"),
        ([TOOLS, GRAPH, NOTES], None, "degraded", "Unreachable: graph, notes"),
        ([TOOLS], LLM_WRONG, "degraded", "LLM: openai: model 'bad-model' not found"),
        ([GRAPH, NOTES], LLM_WRONG, "degraded", "Unreachable: graph, notes; LLM: openai: model 'bad-model' not found"),
    ],
)
def test_an_agent_is_as_well_as_what_it_reaches(
    probes: list[ProbeResult], llm: LlmResult | None, status: str, message: str | None
) -> None:
    verdict = judge(READY, probes, llm)
    assert (verdict.status, verdict.message, verdict.probes) == (status, message, tuple(probes))


def test_an_agent_whose_tool_filters_match_nothing_is_degraded() -> None:
    verdict = judge(replace(READY, problems=("'n__wether' matches no tool", "'n__x' matches no tool")), [GRAPH], LLM)
    assert verdict.status == "degraded"
    assert verdict.message == "Unreachable: graph; Tools: 'n__wether' matches no tool, 'n__x' matches no tool"


def test_a_slow_answer_in_time_is_ok() -> None:
    assert judge(READY, [ProbeResult("tools", 2.99, protocol="initialize")], None).status == "ok"


def test_an_agent_that_cannot_take_calls_is_an_error_with_the_reason_whatever_else_is_known() -> None:
    verdict = judge(FAILED, [GRAPH], LLM_WRONG)
    assert (verdict.status, verdict.message, verdict.probes) == ("error", "no key", ())


SHOWN, SHOWN_NOW = "2026-11-03T11:00:00Z", "2026-11-03T12:00:05.250000Z"
AGENT = {"state": "ready", "since": SHOWN}
CHECKED = {"provider": "openai", "model": "gpt-x", "status": "ok", "checked": SHOWN}


@pytest.mark.parametrize(
    ("life", "probes", "llm", "document"),
    [
        (READY, [], None, {"status": "ok", "agent": AGENT}),
        (
            FAILED,
            [],
            LLM,
            {"status": "error", "message": "no key", "agent": {**AGENT, "state": "failed"}, "llm": CHECKED},
        ),
        (
            READY,
            [TOOLS, GRAPH, SHARED],
            LLM_UNKNOWN,
            {
                "status": "degraded",
                "message": "Unreachable: graph",
                "agent": AGENT,
                "downstream": [
                    {"name": "tools", "status": "ok", "seconds": 0.012, "since": SHOWN, "protocol": "initialize"},
                    {"name": "graph", "status": "unreachable", "seconds": 3.0, "error": LATE, "since": SHOWN_NOW},
                    {"name": "shared", "status": "ok", "seconds": 0.002},
                ],
                "llm": {**CHECKED, "provider": "azure", "status": "not checked", "error": UNCHECKED},
            },
        ),
    ],
)
def test_the_document_says_all_of_it(
    life: Life, probes: list[ProbeResult], llm: LlmResult | None, document: dict[str, Any]
) -> None:
    assert judge(life, probes, llm).document(NOW) == {"timestamp": SHOWN_NOW, **document}


def test_each_word_is_worth_what_the_metric_documents() -> None:
    assert WORTH == {"ok": 1.0, "degraded": 0.5, "error": 0.0}


@pytest.mark.parametrize(
    ("words", "whole", "message"),
    [
        ({"a": "ok", "b": "ok"}, "ok", None),
        ({"a": "ok", "b": "degraded"}, "degraded", "b: why b"),
        ({"a": "ok", "b": "error"}, "degraded", "b: why b"),
        ({"a": "degraded", "b": "error"}, "degraded", "a: why a; b: why b"),
        ({"a": "error", "b": "error"}, "error", "a: why a; b: why b"),
        ({}, "ok", None),
    ],
)
def test_the_whole_is_as_well_as_its_agents(words: dict[str, Word], whole: str, message: str | None) -> None:
    verdicts = {name: Verdict(word, None if word == "ok" else f"why {name}") for name, word in words.items()}
    document = document_of_all(verdicts, NOW)
    assert (document["status"], document.get("message")) == (whole, message)
    assert document["agents"] == {name: verdict.document(NOW) for name, verdict in verdicts.items()}
