"""What `usage` shows: own calls, limits, and with the grant those of all callers."""

import copy
import re
from typing import Any

import pytest

from tests.support.commands import Command
from tests.support.odd_server import odd_server

HOSTILE = "key:\x1b[31mci\u202e\nroot  key:ops" + "x" * 100_000


SINCE = "Counted since the start, also for today; --days 1 shows all of today (needs gateway.database, usage_days).\n"


def row(agent: str, calls: int, *, estimated: int = 0, cost: float | None = None, **more: Any) -> dict[str, Any]:
    tokens = {"input": 1000 * calls, "cachedInput": 10, "cacheWrite": 1, "output": 5}
    numbers = {"calls": calls, "refused": 1, "nestedCalls": 2, "tokens": tokens}
    return {"agent": agent, **numbers, "estimatedTokens": estimated, "cost": cost, **more}


def limit(**more: Any) -> dict[str, Any]:
    given = {"rule": "rule-1", "per": "caller", "agents": ["echo"], "kind": "calls_per_minute", "limit": 60}
    return {**given, "used": 3, "resetSeconds": 11.6, "enforced": True, **more}


DOCUMENT: dict[str, Any] = {
    "day": "2026-11-24",
    "since": "2026-11-20T04:00:00Z",
    "caller": "key:ci",
    "own": {
        "today": [row("echo", 3, estimated=1, cost=0.000012)],
        "total": [row("echo", 1500, cost=3.0), row("gone", 1)],
        "complete": True,
    },
    "limits": [
        limit(),
        limit(rule="all", kind="tokens_per_day", limit=2_000_000, agents=[*"abcdefg"], used=None, resetSeconds=None),
        limit(rule="soft", kind="calls_at_once", limit=2, enforced=False, resetSeconds=None),
    ],
}


def shown_by(run: Command, document: object) -> list[list[str]]:
    with odd_server({"GET": (200, document)}) as server:
        ran = run("usage", "--url", server.url)
    assert (ran.code, ran.err) == (0, SINCE + "~: estimated, because the provider sent no usage.\n" * ("~" in ran.out))
    return [re.split(r" {2,}", line) for line in ran.out.splitlines()]


def test_own_usage_and_limits_are_shown_by_agent(run: Command) -> None:
    assert shown_by(run, DOCUMENT) == [
        ["key:ci on 2026-11-24 (UTC), total since 2026-11-20T04:00:00Z"],
        ["AGENT", "CALLS", "REFUSED", "NESTED", "INPUT", "CACHED", "OUTPUT", "COST", "TOTAL CALLS", "TOTAL TOKENS"],
        ["echo", "3", "1", "2", "~3,001", "10", "~5", "0.000012", "1,500", "1,500,016"],
        ["gone", "0", "0", "0", "0", "0", "0", "-", "1", "1,016"],
        [""],
        ["Limits"],
        ["RULE", "AGENTS", "LIMIT", "USED", "RESETS IN"],
        ["rule-1", "echo", "60 calls per minute", "3", "12 s"],
        ["all", "a, b, c, d, e and 2 more", "2,000,000 tokens per day", "-", "-"],
        ["soft", "echo", "2 calls at once (counts only)", "3", "-"],
    ]


def test_with_the_grant_all_callers_are_shown_and_hostile_names_stay_on_their_line(run: Command) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["limits"] = []
    rows = [row("echo", 2, caller=HOSTILE), row("echo", 1, caller="key:ops")]
    document["all"] = {"today": rows, "total": rows}
    lines = shown_by(run, document)

    assert lines[-4] == ["All callers"]
    assert lines[-3][:3] == ["CALLER", "AGENT", "CALLS"]
    assert lines[-1][:3] == ["key:ops", "echo", "1"]
    assert "".join(lines[-2]).isprintable()
    assert len("".join(lines[-2])) < 300


def of_day(day: str, caller: str, agent: str, calls: int, **failures: int) -> dict[str, Any]:
    return row(agent, calls, caller=caller, cost=0.5, day=day, model="m", failures=failures)


DAYS = [of_day("2026-11-24", "key:ci", "echo", 1, busy=1), of_day("2026-11-23", "key:ci", "echo", 2, busy=1, limited=3)]


def test_days_are_added_up_with_the_reasons_of_failures(run: Command) -> None:
    everyone = [*DAYS, of_day("2026-11-23", "key:ops", "echo", 4)]
    days = {"since": "2026-11-18", "own": DAYS, "owned": DAYS[:1], "all": everyone, "complete": True}
    with odd_server({"GET": (200, {**DOCUMENT, "days": days})}) as server:
        ran = run("usage", "--days", "7", "--url", server.url)
        by, by_day = [run("usage", "--days", "8", "--by", one, "--url", server.url) for one in ("caller", "day")]
    echo = ["3", "2", "4", "3,002", "20", "10", "1.00", "2 busy, 3 limited"]
    columns = ["CALLS", "REFUSED", "NESTED", "INPUT", "CACHED", "OUTPUT", "COST", "FAILED"]
    assert [re.split(r" {2,}", line) for line in ran.out.splitlines()] == [
        ["key:ci from 2026-11-18 to 2026-11-24 (UTC)"],
        ["AGENT", *columns],
        ["echo", *echo],
        [""],
        ["Your agents, by all callers"],
        ["AGENT", *columns],
        ["echo", "1", "1", "2", "1,001", "10", "5", "0.500000", "1 busy"],
        [""],
        ["All callers"],
        ["CALLER", "AGENT", *columns],
        ["key:ci", "echo", *echo],
        ["key:ops", "echo", "4", "1", "2", "4,001", "10", "5", "0.500000", "-"],
    ]
    assert [re.split(r" {2,}", line)[0] for line in by.out.splitlines()] == [
        *("key:ci from 2026-11-17 to 2026-11-24 (UTC), stored since 2026-11-18", "CALLER", "key:ci"),
        *("", "Your agents, by all callers", "CALLS", "1"),
        *("", "All callers", "CALLER", "key:ci", "key:ops"),
    ]
    assert [line.split()[:2] for line in by_day.out.splitlines()[-3:]] == [
        ["DAY", "CALLS"], ["2026-11-23", "6"], ["2026-11-24", "1"]
    ]  # fmt: skip


def test_what_was_counted_since_a_restart_today_is_not_called_that_of_the_day(run: Command) -> None:
    began = {**DOCUMENT, "since": "2026-11-24T19:12:57Z", "days": None}
    assert shown_by(run, began)[0] == ["key:ci since 2026-11-24T19:12:57Z"]
    with odd_server({"GET": (200, began)}) as server:
        ran = run("usage", "--days", "7", "--url", server.url)
    assert ran.out.startswith("key:ci since 2026-11-24T19:12:57Z\n")
    assert "start, also for today; no days are stored (needs gateway.database" in ran.err


def test_without_stored_days_the_sums_of_all_are_shown_as_they_were_asked_for(run: Command) -> None:
    document = copy.deepcopy(DOCUMENT) | {"days": None}
    sums = {name: value for name, value in row("", 3, caller="key:ops").items() if name != "agent"}  # `by=caller`
    document["all"] = {"today": [sums], "total": [sums]}
    with odd_server({"GET": (200, document)}) as server:
        ran = run("usage", "--days", "7", "--by", "caller", "--url", server.url)
    assert (ran.code, ran.out.split("All callers\n")[1].split()[:2]) == (0, ["CALLER", "CALLS"])


def test_rows_that_are_left_out_are_named_and_by_requires_days(run: Command) -> None:
    days = {"since": "2026-11-18", "own": [], "owned": [], "complete": False}
    with odd_server({"GET": (200, {**DOCUMENT, "days": days})}) as server:
        ran = run("usage", "--days", "7", "--url", server.url)
    assert "No call has ended yet." in ran.err
    assert "Ask for fewer days." in ran.err
    assert (run("usage", "--by", "model").code, run("usage", "--days", "0").code) == (2, 2)


def test_a_caller_that_shares_its_numbers_is_told(run: Command) -> None:
    document = {**DOCUMENT, "own": {"today": [], "total": [], "complete": False}, "limits": []}
    with odd_server({"GET": (200, document)}) as server:
        ran = run("usage", "--url", server.url)
    assert ran.code == 0
    assert "with those of others" in ran.err
    assert "No call has ended yet." in ran.err


@pytest.mark.parametrize(
    "body",
    [
        "no JSON",
        "[]",
        "{}",
        "[" * 100_000,
        {**DOCUMENT, "own": {"today": 5, "total": [], "complete": True}},
        {**DOCUMENT, "days": {"since": 5, "own": [], "owned": [], "complete": True}},
        {**DOCUMENT, "limits": [{**DOCUMENT["limits"][0], "resetSeconds": 10**400}]},
    ],
    ids=lambda body: str(body)[:20],
)
def test_an_answer_that_is_no_usage_is_named(body: object, run: Command) -> None:
    with odd_server({"GET": (200, body)}) as server:
        ran = run("usage", "--days", "7", "--url", server.url)
    assert (ran.code, ran.out) == (1, "")
    assert "What answers at" in ran.err


def test_usage_of_a_real_gateway_is_printed_also_as_json(asking: Command) -> None:
    def of_echo(document: Any) -> int:
        return sum(one["calls"] for one in document["own"]["total"] if one["agent"] == "echo")

    before = asking("usage", "--json").json
    assert asking("call", "echo", "hello").code == 0
    after, printed = asking("usage", "--json").json, asking("usage")

    assert of_echo(after) == of_echo(before) + 1
    assert after["all"]["total"][0]["caller"] == "anonymous"
    assert printed.code == 0
    assert "echo" in printed.out


def test_a_gateway_that_fails_is_not_called_an_older_one(run: Command) -> None:
    with odd_server({"GET": (500, {})}) as server:
        ran = run("usage", "--url", server.url)
    assert (ran.code, ran.out) == (1, "")
    assert "failed (HTTP 500): its log has the error" in ran.err


def test_an_older_gateway_and_an_address_that_is_none_are_named(run: Command) -> None:
    with odd_server({}) as server:
        ran = run("usage", "--url", server.url)
    assert (ran.code, ran.out) == (1, "")
    assert "it may be an older gateway" in ran.err
    assert run("usage", "--url", "nowhere").code == 2


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.2, "60 s"), (61, "2 min"), (3600, "1 h 0 min"), (30_395, "8 h 27 min")]
)
def test_a_long_time_until_a_limit_resets_has_hours_and_minutes(run: Command, seconds: float, text: str) -> None:
    shown = shown_by(run, {**DOCUMENT, "limits": [limit(resetSeconds=seconds)]})
    assert text in shown[-1]
