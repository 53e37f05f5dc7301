"""`/metrics` after a scripted run, in both listener modes: the reference's table and its PromQL; and under attack."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from pallas_gateway import __version__
from pallas_gateway.telemetry.metrics import AUTH_REFUSALS, QUESTION_KINDS, QUESTION_OUTCOMES
from tests.e2e.metering import PORTS, WORKER_USAGE, Metered, metered
from tests.support import dashboard
from tests.support.calling import ask, health
from tests.support.clients import MODERN_VERSION, RawClient, raw_client, tool_params
from tests.support.crowds import crowd
from tests.support.downstreams import stateless_downstream
from tests.support.exposition import Exposition, lint, unknown_in, without_result
from tests.support.gateway import Agent, Running, running, until_idle, write_project
from tests.support.metrics_document import ALERTS, QUESTIONS
from tests.support.scripted_llm import DEFAULT_USAGE, Turn, call_tools, say
from tests.support.watching import Stage, calling, script_of, stage

type Attack = Callable[[RawClient, str], Awaitable[object]]


def row(type_: str, *labels: str, **values: str) -> tuple[str, tuple[str, ...], dict[str, set[str]]]:
    """One row of the table: type, labels, and the values of closed label sets."""
    return (type_, labels, {label: set(words.split()) for label, words in values.items()})


HOSTED = "worker clerk boss lost broken"
KINDS = "input output cache_read cache_write cache_hit reasoning"
TABLE = {
    "pallas_up": row("gauge"),
    "pallas_workers": row("gauge"),
    "pallas_agent_info": row("gauge", "agent", "port", agent=HOSTED),
    "pallas_send_message_total": row("counter", "agent", "outcome", agent=HOSTED, outcome="ok error"),
    "pallas_send_message_duration_seconds": row("histogram", "agent", agent=HOSTED),
    "pallas_llm_turns_total": row("counter", "agent", "model", agent="worker clerk boss lost"),
    "pallas_llm_tokens_total": row("counter", "agent", "model", "kind", agent="worker clerk boss lost", kind=KINDS),
    "pallas_cost_total": row("counter", "agent", "model", agent="worker boss lost"),
    "pallas_limit_used_ratio": row("gauge", "rule", rule="many"),
    "pallas_audit_up": row("gauge", "output", output="file"),
    "pallas_audit_sequence": row("gauge", "output", output="file"),
    "pallas_audit_head": row("gauge", "output", output="file"),
    "pallas_tool_calls_total": row(
        "counter", "agent", "server", "operation", "outcome", operation="tool prompt resource", outcome="ok error"
    ),
    "pallas_tool_call_duration_seconds": row(
        "histogram", "agent", "server", "operation", operation="tool prompt resource"
    ),
    "pallas_downstream_up": row("gauge", "agent", "server", server="tools gone"),
    "pallas_llm_provider_up": row("gauge", "provider", provider="generic"),
    "pallas_agent_health_status": row("gauge", "agent", agent=HOSTED),
    "pallas_agent_loop_aborted_total": row(
        "counter", "agent", "reason", agent=HOSTED, reason="repeat oscillation deadline budget limited"
    ),
    # What the contract adds to the reference's table
    "pallas_build_info": row("gauge", "version", "python", version=__version__),
    "pallas_calls_in_flight": row("gauge", "agent", agent=HOSTED),
    "pallas_instances_live": row("gauge", "agent", agent=HOSTED),
    "pallas_event_loop_tasks": row("gauge"),
    "pallas_calls_refused_total": row("counter", "agent", "reason", agent=HOSTED),
    "pallas_agent_state": row("gauge", "agent", "state", agent=HOSTED, state="pending starting ready failed"),
    "pallas_agent_state_changes_total": row(
        "counter", "agent", "state", agent=HOSTED, state="pending starting ready failed"
    ),
    "pallas_config_last_reload_successful": row("gauge"),
    "pallas_config_last_reload_timestamp_seconds": row("gauge"),
    "pallas_config_reloads_total": row("counter", "outcome", outcome="ok error"),
    "pallas_stored_agent_changes_total": row("counter", "outcome", outcome="ok error"),
    "pallas_stored_agents_kept_back": row("gauge"),
    "pallas_fast_path": row("gauge", "name"),
    "pallas_worker_restarts_total": row("counter"),
    "pallas_heartbeats_total": row("counter", "agent", agent=HOSTED),
    "pallas_questions_open": row("gauge", "agent", agent=HOSTED),
    "pallas_questions_total": row(
        *("counter", "agent", "kind", "outcome"),
        agent=HOSTED,
        kind=" ".join(QUESTION_KINDS),
        outcome=" ".join(QUESTION_OUTCOMES),
    ),
    "pallas_caller_tokens_total": row("counter", "caller", "agent", caller="key:ci", agent="boss clerk"),
    "pallas_auth_refused_total": row("counter", "reason", reason=" ".join(AUTH_REFUSALS)),
}
TOKENS = "pallas_llm_tokens_total"
OF_OTHER_GATEWAYS = {
    "pallas_certificate_expires_seconds",
    "pallas_key_expires_seconds",
    "pallas_task_continued_total",
    "pallas_task_lost_tools_total",
    "pallas_task_wait_seconds",
    "pallas_tasks",
    "pallas_tasks_created_total",
    "pallas_tasks_ended_total",
    "pallas_threads_database_up",
}
"""Metrics without samples in this run: of gateways with a certificate, keys that expire, or a database."""
STAYS_AT_0 = {
    "pallas_auth_refused_total",
    "pallas_calls_in_flight",
    "pallas_config_reloads_total",
    "pallas_instances_live",
    "pallas_questions_open",
    "pallas_questions_total",
    "pallas_stored_agent_changes_total",
    "pallas_stored_agents_kept_back",
    "pallas_worker_restarts_total",
}

QUERIES = [
    """sum by (agent) (rate(pallas_send_message_total{outcome="error"}[5m]))
       / sum by (agent) (rate(pallas_send_message_total[5m]))""",
    "histogram_quantile(0.95, sum by (agent, le) (rate(pallas_send_message_duration_seconds_bucket[5m])))",
    "sum by (model, kind) (rate(pallas_llm_tokens_total[1h]))",
    """sum(rate(pallas_llm_tokens_total{kind="cache_read"}[5m]))
       / sum(rate(pallas_llm_tokens_total{kind=~"input|cache_read|cache_write"}[5m]))""",
    "min by (server) (pallas_downstream_up) == 0",
    "pallas_llm_provider_up == 0",
    # The alerts, those with a threshold of the operator's own without it
    "pallas_downstream_up == 0",
    'rate(pallas_send_message_total{outcome="error"}[10m])',
    "histogram_quantile(0.95, sum by (agent, le) (rate(pallas_send_message_duration_seconds_bucket[10m])))",
    'sum(rate(pallas_llm_tokens_total{kind="output"}[1h])) > 0',
    "increase(pallas_agent_loop_aborted_total[15m]) > 0",
]
"""The reference's queries and alerts, but for `up{job="pallas"}`, which is Prometheus' own."""

DASHBOARD = [dashboard.as_promql(query) for query in dashboard.QUERIES]


@pytest.fixture(scope="module")
def single_port(tmp_path_factory: pytest.TempPathFactory) -> Metered:
    return asyncio.run(metered(tmp_path_factory.mktemp("single"), per_port=False))


@pytest.fixture(scope="module")
def per_port(tmp_path_factory: pytest.TempPathFactory) -> Metered:
    return asyncio.run(metered(tmp_path_factory.mktemp("per-port"), per_port=True))


@pytest.fixture(params=["single_port", "per_port"])
def run(request: pytest.FixtureRequest) -> Metered:
    chosen: Metered = request.getfixturevalue(request.param)
    return chosen


# --- The table


@pytest.mark.parametrize("name", TABLE)
def test_a_metric_of_the_table_is_there_with_its_type_and_labels_and_has_moved(name: str, run: Metered) -> None:
    family = run.after["registry"].families[name]
    type_, labels, closed = TABLE[name]
    assert family.type == type_
    assert family.documentation
    assert {frozenset(sample.labels) - {"le"} for sample in family.samples} == {frozenset(labels)}
    for label, values in closed.items():
        assert {sample.labels[label] for sample in family.samples} == values
    assert name in STAYS_AT_0 or any(sample.value for sample in family.samples)


def test_there_is_no_metric_beyond_the_table(run: Metered) -> None:
    assert set(run.after["registry"].families) == set(TABLE) | OF_OTHER_GATEWAYS
    assert re.search("_created[ {]", run.after["registry"].text) is None


def test_the_process_is_told_of_as_well(run: Metered) -> None:
    text = run.after["registry"].text
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds", "python_gc"):
        assert f"\n{name}" in text


TASKS = ("pallas_event_loop_tasks", frozenset[tuple[str, str]]())


def lasting(exposition: Any) -> dict[Any, float]:
    """All series but the number of tasks: the connection of an earlier scrape may have ended."""
    return {name: value for name, value in exposition.series.items() if name != TASKS}


def test_every_listener_of_per_port_mode_tells_the_same(per_port: Metered) -> None:
    assert set(per_port.after) == set(PORTS)
    for exposition in per_port.after.values():
        assert lasting(exposition) == lasting(per_port.after["registry"])


def test_an_agents_port_is_the_configured_one_else_the_listeners(single_port: Metered, per_port: Metered) -> None:
    ports = per_port.ports
    for name in HOSTED.split():
        assert per_port.after["registry"].value("pallas_agent_info", agent=name, port=str(ports[name])) == 1

    told = single_port.after["registry"].families["pallas_agent_info"].samples
    by_agent = {sample.labels["agent"]: sample.labels["port"] for sample in told}
    assert by_agent.pop("clerk") == str(single_port.ports["clerk"])
    [listener] = set(by_agent.values())
    assert listener not in {str(port) for port in single_port.ports.values()}


# --- The numbers


def test_calls_are_counted_by_their_outcome_and_each_is_timed(run: Metered) -> None:
    # worker: an answer, a halted loop, a late answer; no model, bad input, busy. clerk: boss's errand and its own,
    # of which a prompt that fails is one without messages, and a resource that is not there an error.
    expected = {"worker": (6, 6), "clerk": (8, 2), "boss": (2, 0), "lost": (0, 0), "broken": (0, 2)}
    told = run.after["registry"]
    for agent, (ok, error) in expected.items():
        assert told.value("pallas_send_message_total", agent=agent, outcome="ok") == ok
        assert told.value("pallas_send_message_total", agent=agent, outcome="error") == error
        assert told.value("pallas_send_message_duration_seconds_count", agent=agent) == ok + error


@pytest.mark.parametrize(
    ("asked", "ok", "error"),
    [
        (("worker", "tools", "tool"), 8, 2),  # `add` and three times `echo`; `fail`
        (("clerk", "tools", "prompt"), 4, 2),  # its own and boss's errand
        (("clerk", "tools", "resource"), 2, 2),
        (("boss", "clerk", "tool"), 2, 0),  # a peer is a downstream like any other
        (("lost", "gone", "tool"), 0, 0),  # which could never be asked
    ],
)
def test_operations_are_counted_by_agent_server_and_kind(
    asked: tuple[str, str, str], ok: int, error: int, run: Metered
) -> None:
    told = run.after["registry"]
    labels = dict(zip(("agent", "server", "operation"), asked, strict=True))
    assert told.value("pallas_tool_calls_total", outcome="ok", **labels) == ok
    assert told.value("pallas_tool_calls_total", outcome="error", **labels) == error
    assert (told.value("pallas_tool_call_duration_seconds_count", **labels) or 0) == ok + error


def test_the_kinds_of_a_prompts_tokens_add_up_to_it(run: Metered) -> None:
    told = run.after["registry"]

    def spent(kind: str) -> float:
        earlier = run.before["registry"].value(TOKENS, agent="worker", model="test-model", kind=kind)
        return (told.value(TOKENS, agent="worker", model="test-model", kind=kind) or 0) - (earlier or 0)

    # The turns of a round: two of `work`, three of the loop, and the late answer.
    prompts = 2 * WORKER_USAGE.prompt + 4 * DEFAULT_USAGE.prompt
    assert spent("input") + spent("cache_read") + spent("cache_write") == prompts
    assert (spent("cache_read"), spent("cache_write"), spent("reasoning")) == (80, 20, 14)
    assert spent("cache_hit") == spent("cache_read")  # its provider caches by itself
    assert spent("output") == 2 * WORKER_USAGE.completion + 4 * DEFAULT_USAGE.completion
    assert told.value("pallas_llm_turns_total", agent="worker", model="test-model") == 12


def test_refusals_halts_heartbeats_and_states_are_counted(run: Metered) -> None:
    told = run.after["registry"]
    for agent, reason in (("worker", "bad_image"), ("worker", "busy"), ("broken", "agent_unavailable")):
        assert told.value("pallas_calls_refused_total", agent=agent, reason=reason) == 2
    assert told.value("pallas_agent_loop_aborted_total", agent="worker", reason="repeat") == 2
    assert (told.value("pallas_heartbeats_total", agent="worker") or 0) >= 2
    assert told.value("pallas_agent_state", agent="worker", state="ready") == 1
    assert told.value("pallas_agent_state", agent="broken", state="failed") == 1
    assert told.value("pallas_agent_state", agent="broken", state="ready") == 0


def test_health_sets_its_gauges(run: Metered) -> None:
    told = run.after["registry"]
    assert [told.value("pallas_agent_health_status", agent=agent) for agent in ("worker", "lost")] == [1, 0.5]
    assert told.value("pallas_downstream_up", agent="worker", server="tools") == 1
    assert told.value("pallas_downstream_up", agent="lost", server="gone") == 0


# --- As Prometheus sees it


@pytest.mark.parametrize("query", [*QUERIES, *QUESTIONS, *ALERTS.values(), *DASHBOARD])
def test_a_query_of_the_reference_document_or_dashboard_asks_for_what_is_there(query: str, run: Metered) -> None:
    assert set(unknown_in(query, run.after["registry"])) <= OF_OTHER_GATEWAYS


@pytest.mark.needs("promtool")
def test_every_query_of_the_reference_has_an_answer(single_port: Metered, tmp_path: Path) -> None:
    # The provider of the run is up, so the query for one that is not rightly finds none; its opposite finds it.
    queries = [query.replace("provider_up == 0", "provider_up == 1") for query in QUERIES]
    assert without_result(queries, single_port.before["registry"], single_port.after["registry"], tmp_path) == ""


@pytest.mark.needs("promtool")
def test_every_panel_of_the_dashboard_has_something_to_show(single_port: Metered, tmp_path: Path) -> None:
    own = [query for query in DASHBOARD if "pallas_" in query]
    assert without_result(own, single_port.before["registry"], single_port.after["registry"], tmp_path) == ""
    for name in {word for query in DASHBOARD for word in re.findall(r"\bprocess_\w+", query)}:
        assert f"\n{name} " in single_port.after["registry"].text


@pytest.mark.needs("promtool")
def test_prometheus_has_nothing_against_the_exposition(run: Metered) -> None:
    assert lint(run.after["registry"].text) == ""


def test_openmetrics_tells_the_same(run: Metered) -> None:
    series = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_openmetrics(run.openmetrics)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.name.startswith("pallas_")
    }
    series.pop(TASKS)
    assert series == lasting(run.after["registry"])


# --- under attack -----------------------------------------------------------------------------------------------------

ATTACKS: tuple[Attack, ...] = (
    lambda client, evil: client.http.get(f"{_base(client)}/{evil}"),
    lambda client, evil: client.http.get(f"{_base(client)}/metrics?{evil}", headers={"accept": f"text/{evil}"}),
    lambda client, evil: client.http.post(f"{_base(client)}/agents/{evil}/mcp", json={}),
    lambda client, evil: client.http.post(client.url, json={}, headers={"host": f"{evil}.example"}),
    lambda client, evil: client.request("tools/call", tool_params(evil)),
    lambda client, evil: client.request("prompts/get", {"name": evil}),
    lambda client, evil: client.request(evil),
    lambda client, evil: client.call_tool("send_message", {"message": "hi", "images": evil}),
    lambda client, evil: client.call_tool("send_message", {"message": "hi", evil: evil}),
    lambda client, evil: client.call_tool(
        "send_message", {"message": evil, "conversation_id": evil}, headers={"user-agent": evil, "x-agent": evil}
    ),
)


HOSTILE_PATHS = [
    *("/agents/nope/mcp", "/agents/%22%7d%0apallas_up%2042/mcp", "/agents/%ff/mcp", "/agents/%00/mcp"),
    *("/agents/../../etc/passwd", "/%0d%0aX-Injected:%20yes", f"/agents/{'a' * 5_000}/mcp", "/metrics/../x"),
]


@pytest.mark.crowd
@crowd(100, 1000)
async def test_hostile_requests_add_no_series(size: int, tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"echo": Agent()})) as served:
        await ask(served.url("echo"))
        await health(served.url("echo"))
        before = await _scrape(served)
        many = asyncio.Semaphore(20)

        async def attack(number: int) -> None:
            async with many:
                await ATTACKS[number % len(ATTACKS)](client, f"evil{number}")

        async with raw_client(served.url("echo"), protocol_version=MODERN_VERSION) as client:
            async with asyncio.TaskGroup() as attacks:
                for number in range(size):
                    attacks.create_task(attack(number))
            for path in HOSTILE_PATHS:
                for method in ("GET", "POST", "BREW"):
                    answer = await client.http.request(method, f"{_base(client)}{path}", json={})
                    assert answer.status_code in {400, 404, 405}, (method, path)
            await until_idle(served)
            after = await _scrape(served)

    assert set(after.series) == set(before.series)
    assert "evil" not in after.text
    assert after.text.count("\n") == before.text.count("\n")
    assert after.value("pallas_send_message_total", agent="echo", outcome="ok") == 1 + size / 10
    assert after.value("pallas_calls_refused_total", agent="echo", reason="bad_image") == size / 10
    assert after.value("pallas_calls_refused_total", agent="echo", reason="bad_input") == size / 10


async def test_neither_tools_that_a_model_makes_up_nor_those_it_is_offered_add_series(tmp_path: Path) -> None:
    nothings: list[tuple[str, dict[str, str]]] = [(f"tools__nothing{number}", {}) for number in range(20)]
    nobodies: list[tuple[str, dict[str, str]]] = [(f"nobody{number}__tool", {}) for number in range(20)]
    listed: list[tuple[str, dict[str, str]]] = [(f"more__tool{number}", {}) for number in range(20)]
    turns: list[Turn] = [call_tools([*nothings, *nobodies]), call_tools(listed), say("done")]
    agents = {"solo": Agent(servers=["tools", "more"])}
    async with AsyncExitStack() as stack:
        more = await stack.enter_async_context(stateless_downstream())
        for number in range(20):
            more.server.tool(lambda: "listed", name=f"tool{number}")
        servers = {"more": {"transport": "http", "url": more.url}}
        staged = await stack.enter_async_context(stage(tmp_path, script_of(solo=turns), agents, peers=servers))
        before = await _scrape(staged.served)
        assert (await ask(staged.url("solo"))).text == "done"
        await until_idle(staged.served)
        after = await _scrape(staged.served)

    assert after.labels_of("pallas_tool_calls_total") == before.labels_of("pallas_tool_calls_total")
    labels = {"agent": "solo", "server": "more", "operation": "tool"}
    # What a model makes up is never asked of anybody.
    assert after.value("pallas_tool_calls_total", outcome="ok", **labels) == len(listed)
    assert after.value("pallas_tool_calls_total", outcome="error", **labels) == 0


async def test_a_cancelled_calls_tool_and_tokens_are_counted(tmp_path: Path) -> None:
    async with stage(tmp_path, script_of(solo=[call_tools([("tools__slow", {})])])) as staged:
        async with calling(staged.url("solo")):
            await staged.tools.gate.wait_for_entered()
        await until_idle(staged.served)
        assert _operations(staged, "error") == 1
        assert staged.served.metric("pallas_tool_call_duration_seconds_count", **SLOW) == 1
        assert staged.served.metric("pallas_send_message_total", agent="solo", outcome="error") == 1
        assert staged.served.metric("pallas_llm_turns_total", agent="solo", model="test-model") == 1
        assert staged.served.metric("pallas_llm_tokens_total", agent="solo", model="test-model", kind="input") == 10


async def test_a_downstream_that_goes_away_under_a_tool_call_is_an_error_of_it(tmp_path: Path) -> None:
    async with stage(tmp_path, script_of(solo=[call_tools([("tools__slow", {})]), say("gone")])) as staged:
        async with calling(staged.url("solo")) as (_, call):
            await staged.tools.gate.wait_for_entered()
            await staged.tools.stop()
            await call.reply()
        assert (_operations(staged, "ok"), _operations(staged, "error")) == (0, 1)
        assert staged.served.metric("pallas_send_message_total", agent="solo", outcome="ok") == 1


SLOW = {"agent": "solo", "server": "tools", "operation": "tool"}


def _operations(staged: Stage, outcome: str) -> float:
    return staged.served.metric("pallas_tool_calls_total", outcome=outcome, **SLOW)


def _base(client: RawClient) -> str:
    return client.url.partition("/agents/")[0]


async def _scrape(served: Running) -> Exposition:
    return Exposition((await served.request("GET", "/metrics")).raise_for_status().text)
