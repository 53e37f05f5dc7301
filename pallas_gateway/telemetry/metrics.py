"""Every metric of the gateway: name, help text and labels, in this one file.

Label values come from configuration and from the closed sets below, never from a path or a client. They are known
before the first call, so an agent's series begin at 0: a counter that first appears with value 1 has not increased, and
no alert would fire. docs/operate/observability.md describes each metric.

Agents of the database have names and models from clients, in any number over time, and counters of deleted agents stay.
So a counter or histogram has a largest number of series, beyond which further agents and models are counted together.
"""

from __future__ import annotations

import asyncio
import math
import platform
import warnings
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, Self, override

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

from pallas_gateway import __version__
from pallas_gateway.telemetry import workers_metrics
from pallas_gateway.telemetry.exposition import WithPauses
from pallas_gateway.telemetry.workers_metrics import WorkersMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from prometheus_client.registry import Collector

    from pallas_gateway.telemetry.audit_state import AuditState

    type Across = Literal["livemax", "livemin", "livesum", "livemostrecent"]

DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
"""Seconds; a call takes at least one LLM turn and by default at most ten minutes."""
OPERATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Seconds; a downstream may answer from memory, or be a peer whose calls take minutes."""

STATES = ("pending", "starting", "ready", "failed")
OUTCOMES = ("ok", "error")
HALTS = ("repeat", "oscillation", "deadline", "budget", "limited")
REFUSALS = (
    "agent_unavailable",
    "approval_required",
    "audit_unavailable",
    "bad_image",
    "bad_input",
    "bad_params",
    "busy",
    "call_again",
    "database_unavailable",
    "images_unsupported",
    "insufficient_scope",
    "limited",
    "nesting_too_deep",
    "no_tool",
)
AUTH_REFUSALS = ("no_token", "invalid_token", "no_grant", "insufficient_scope", "verification_unavailable")
QUESTION_KINDS = ("form", "url", "approval", "human_input")
QUESTION_OUTCOMES = ("accepted", "declined", "cancelled", "expired", "unaskable")
TOKEN_KINDS = ("input", "output", "cache_read", "cache_write", "reasoning")
"""Kinds of tokens that every provider may have."""
MOST_SERIES = 20_000
"""Of one counter or histogram; a hundred agents have at most some thousand."""
OTHER = "(other)"
"""The agent and the model of series beyond that; no agent can have this name."""


class _Counter(Counter):
    left = 0
    """Series that were removed here, and stay in the files that workers share."""

    @override
    def labels(self, *values: Any, **named: Any) -> Self:
        return super().labels(*_within(self, values, named))


class _Histogram(Histogram):
    left = 0

    @override
    def labels(self, *values: Any, **named: Any) -> Self:
        return super().labels(*_within(self, values, named))


def _within(metric: _Counter | _Histogram, values: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the label values of a series that the metric has or may begin."""
    names = metric._labelnames
    wanted = tuple(map(str, values or (named[name] for name in names)))
    if len(metric._metrics) + metric.left < MOST_SERIES or wanted in metric._metrics:
        return wanted
    return tuple(OTHER if name in {"agent", "model"} else one for name, one in zip(names, wanted, strict=True))


class Metrics:
    """The metrics of one gateway, registered with `registry`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client leaves it untyped
        self.registry = registry or CollectorRegistry()
        folder = workers_metrics.joined() if registry is None else None
        self._of_all_workers = WorkersMetrics(self.registry, folder) if folder else None
        self._ports: dict[str, int] = {}
        self._keys: set[str] = set()
        self._counts: list[_Counter | _Histogram] = []
        of_the_process = (
            (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR) if registry is None and not folder else ()
        )
        for collector in of_the_process:
            self.registry.register(collector)
        self.up = self._gauge("pallas_up", "1 while the gateway runs.", across="livemax")
        self.workers = self._gauge(
            "pallas_workers", "Processes that serve; more than 1 with `serve --workers`.", across="livesum"
        )
        self.build_info = self._gauge(
            "pallas_build_info", "Version of the gateway and of Python.", "version", "python", across="livemax"
        )
        self.config_reload_successful = self._gauge(
            "pallas_config_last_reload_successful",
            "1 when the last load of the configuration came out whole.",
            across="livemin",
        )
        self.config_reload_time = self._gauge(
            "pallas_config_last_reload_timestamp_seconds",
            "When the configuration was last loaded whole.",
            across="livemin",
        )
        self.config_reloads = self._counter("pallas_config_reloads_total", "Reloads, by outcome.", "outcome")
        self.stored_agent_changes = self._counter(
            "pallas_stored_agent_changes_total", "Changes of agents of the database that were taken up.", "outcome"
        )
        self.stored_agents_kept_back = self._gauge(
            "pallas_stored_agents_kept_back",
            "Agents of the database whose present version did not start; they run an earlier one.",
            across="livemax",
        )
        self.agent_info = self._gauge("pallas_agent_info", "1 per configured agent.", "agent", "port", across="livemax")
        self.agent_state = self._gauge(
            "pallas_agent_state", "1 for the state an agent is in.", "agent", "state", across="livemax"
        )
        self.agent_state_changes = self._counter(
            "pallas_agent_state_changes_total", "Changes of state, by the new one.", "agent", "state"
        )
        self.send_message = self._counter("pallas_send_message_total", "Calls, by outcome.", "agent", "outcome")
        self.send_message_seconds = self._histogram(
            "pallas_send_message_duration_seconds", "Duration of calls.", "agent", buckets=DURATION_BUCKETS
        )
        self.llm_turns = self._counter("pallas_llm_turns_total", "LLM round trips.", "agent", "model")
        self.llm_tokens = self._counter("pallas_llm_tokens_total", "Tokens, by kind.", "agent", "model", "kind")
        self.cost = self._counter("pallas_cost_total", "Cost of LLM turns, by `gateway.prices`.", "agent", "model")
        self.tool_calls = self._counter(
            "pallas_tool_calls_total",
            "Operations asked of downstreams: tools, prompts and resources.",
            *("agent", "server", "operation", "outcome"),
        )
        self.tool_call_seconds = self._histogram(
            "pallas_tool_call_duration_seconds",
            "Duration of operations asked of downstreams.",
            *("agent", "server", "operation"),
            buckets=OPERATION_BUCKETS,
        )
        self.caller_tokens = self._counter(
            "pallas_caller_tokens_total", "Tokens of calls by static keys.", "caller", "agent"
        )
        self.calls_in_flight = self._gauge("pallas_calls_in_flight", "Calls running now.", "agent", across="livesum")
        self.instances_live = self._gauge(
            "pallas_instances_live", "Instances made and not yet released.", "agent", across="livesum"
        )
        self.tasks = self._gauge("pallas_tasks", "Tasks of the event loop that have not ended.", across="livesum")
        self.calls_refused = self._counter("pallas_calls_refused_total", "Calls not started.", "agent", "reason")
        self.auth_refused = self._counter(
            "pallas_auth_refused_total", "Requests that authentication turned away.", "reason"
        )
        self.loops_aborted = self._counter(
            "pallas_agent_loop_aborted_total", "Loops stopped by a guard, deadline or budget.", "agent", "reason"
        )
        self.questions = self._counter(
            "pallas_questions_total", "Questions that arose in calls.", "agent", "kind", "outcome"
        )
        self.questions_open = self._gauge(
            "pallas_questions_open", "Questions that wait for an answer.", "agent", across="livesum"
        )
        self.heartbeats = self._counter("pallas_heartbeats_total", "Heartbeats sent to waiting clients.", "agent")
        self.health_status = self._gauge(
            "pallas_agent_health_status",
            "Last check: 1 ok, 0.5 degraded, 0 error.",
            "agent",
            across="livemostrecent",
        )
        self.downstream_up = self._gauge(
            "pallas_downstream_up",
            "1 when a downstream answered its last probe, or the last call that noticed a change.",
            *("agent", "server"),
            across="livemostrecent",
        )
        self.llm_provider_up = self._gauge(
            "pallas_llm_provider_up",
            "1 when the active LLM provider passed its last check.",
            "provider",
            across="livemostrecent",
        )
        self._add_gauges_of_settings()
        self.worker_restarts = self._counter("pallas_worker_restarts_total", "Workers replaced after they had ended.")
        if self._of_all_workers is not None:
            self._of_all_workers.add_computed(self.instances_live)
            of_hosted = (self.agent_info, self.agent_state, self.health_status, self.downstream_up)
            self._of_all_workers.hide_unhosted(self.agent_info, of_hosted)
        self._scraping = asyncio.Lock()
        self._expect_gateway()

    def _add_gauges_of_settings(self) -> None:
        self.threads_database_up = self._gauge(
            "pallas_threads_database_up", "1 while the database of threads can be used.", "kind", across="livemin"
        )
        self.certificate_expires = self._gauge(
            "pallas_certificate_expires_seconds",
            "When the certificate expires, in seconds since 1970.",
            "setting",
            across="livemin",
        )
        self.key_expires = self._gauge(
            "pallas_key_expires_seconds",
            "When a static key expires, in seconds since 1970.",
            "name",
            across="livemostrecent",
        )
        self.fast_path = self._gauge(
            "pallas_fast_path", "1 for a fast path that is on, 0 for one that is off.", "name", across="livemin"
        )
        self.limit_used = self._gauge(
            "pallas_limit_used_ratio",
            "The largest share of a limit that a caller or agent has used, by rule of gateway.limits.",
            "rule",
            across="livemostrecent",
        )
        self.limit_ratios: Callable[[], Mapping[str, float]] = dict
        """Returns the values of `limit_used`; called at each scrape."""
        self._rules: set[str] = set()
        self._audit_up = self._gauge(
            "pallas_audit_up", "1 while lines can be written to the audit log.", "output", across="livemostrecent"
        )
        self._audit_sequence = self._gauge(
            "pallas_audit_sequence", "Number of the last line of the audit log.", "output", across="livemostrecent"
        )
        self._audit_head = self._gauge(
            "pallas_audit_head",
            "First 13 hexadecimal digits of the hash of the last line of the audit log, as a number.",
            "output",
            across="livemostrecent",
        )
        self.audit_state: Callable[[], AuditState | None] = lambda: None
        """Returns the state of the audit log; called at each scrape."""
        self._audited = ""

    @property
    def exposed(self) -> Collector:
        """The metrics for a scraper: in one of several workers those of all workers."""
        return self._of_all_workers or self.registry

    async def exposition(self, encode: Callable[[Collector], bytes]) -> bytes:
        """Return the metrics as `encode` writes them, in a thread: 100 agents have 7,000 series, which take 70 ms."""
        async with self._scraping:  # one scrape at a time
            self.refresh()
            return await asyncio.to_thread(encode, WithPauses(self.exposed))

    def refresh(self) -> None:
        """Set the values that are computed for each scrape, and share them with the other workers."""
        self.tasks.set(_running_tasks())
        for rule, ratio in self.limit_ratios().items():
            if rule in self._rules:  # a worker and its parent reload one after the other
                self.limit_used.labels(rule).set(ratio)
        self._refresh_audit(self.audit_state())
        if self._of_all_workers is not None:
            self._of_all_workers.refresh()

    def _refresh_audit(self, state: AuditState | None) -> None:
        output = state.output if state is not None else ""
        if self._audited not in {"", output}:
            for gauge in (self._audit_up, self._audit_sequence, self._audit_head):
                _end(gauge, output=self._audited)
        self._audited = output
        if state is not None:
            self._audit_up.labels(output).set(state.is_up)
            self._audit_sequence.labels(output).set(state.sequence)
            self._audit_head.labels(output).set(state.head)

    def _expect_gateway(self) -> None:
        """Begin the series that depend on no configuration."""
        self.up.set(1)
        self.workers.set(1)
        self.build_info.labels(__version__, platform.python_version()).set(1)
        for outcome in OUTCOMES:
            self.config_reloads.labels(outcome)
            self.stored_agent_changes.labels(outcome)
        for reason in AUTH_REFUSALS:
            self.auth_refused.labels(reason)

    def expect_agent(self, agent: str, instances_live: Callable[[], float]) -> None:
        """Begin the series of a hosted agent at 0; `instances_live` is called at each scrape."""
        if self._of_all_workers is not None:
            self._of_all_workers.hidden.discard(agent)
        if instances_live() == 0:  # otherwise earlier calls of the agent still run and are counted
            self.calls_in_flight.labels(agent).set(0)
        self.instances_live.labels(agent).set_function(instances_live)
        for state in STATES:
            self.agent_state_changes.labels(agent, state)
        self.heartbeats.labels(agent)
        self.send_message_seconds.labels(agent)
        for outcome in OUTCOMES:
            self.send_message.labels(agent, outcome)
        self.questions_open.labels(agent)
        for kind, outcome in product(QUESTION_KINDS, QUESTION_OUTCOMES):
            self.questions.labels(agent, kind, outcome)
        for reason in HALTS:
            self.loops_aborted.labels(agent, reason)
        for reason in REFUSALS:
            self.calls_refused.labels(agent, reason)

    def set_agent(self, agent: str, port: int) -> None:
        if self._ports.get(agent) == port:
            return  # to remove a series takes as long as there are series
        self._ports[agent] = port
        _end(self.agent_info, agent=agent)
        self.agent_info.labels(agent, str(port)).set(1)

    def set_keys(self, ends: Mapping[str, float]) -> None:
        """Show when keys expire, by their names, and no others."""
        for name in self._keys - ends.keys():
            _end(self.key_expires, name=name)
        self._keys = {*ends}
        for name, end in ends.items():
            self.key_expires.labels(name).set(end)

    def forget_agent(self, agent: str) -> None:
        """End the gauges of an agent that is no longer hosted; counters stay."""
        self._ports.pop(agent, None)
        for gauge in (self.agent_info, self.agent_state):
            _end(gauge, agent=agent)

    def forget_calls(self, agent: str) -> None:
        """End the call gauges of an agent that is no longer hosted, after its last call."""
        for gauge in (self.calls_in_flight, self.instances_live, self.questions_open):
            _end(gauge, shared_as=0.0, agent=agent)  # a sum over workers, which NaN would hide

    def forget_counts(self, agent: str) -> None:
        """Remove the counters of an agent that will not come back, after its last call: names must not pile up."""
        for metric in self._counts:
            if "agent" in metric._labelnames:
                before = len(metric._metrics)
                _remove(metric, agent=agent)
                if self._of_all_workers is not None:
                    metric.left += before - len(metric._metrics)
        if self._of_all_workers is not None:
            self._of_all_workers.hidden.add(agent)

    def forget_health(self, agent: str) -> None:
        """End the health gauge of an agent that is no longer hosted."""
        _end(self.health_status, agent=agent)

    def forget_downstream(self, agent: str, server: str) -> None:
        """End the gauge of a server that the agent no longer uses."""
        _end(self.downstream_up, agent=agent, server=server)

    def expect_model(self, agent: str, model: str, *, is_priced: bool = False) -> None:
        """Begin the turns and tokens of an agent with its own model at 0; other models begin at their first turn."""
        if is_priced:
            self.cost.labels(agent, model)
        self.llm_turns.labels(agent, model)
        for kind in TOKEN_KINDS:
            self.llm_tokens.labels(agent, model, kind)

    def expect_downstream(self, agent: str, server: str) -> None:
        """Begin an agent's tool calls of one server at 0; prompts and resources, which are rare, begin later."""
        for outcome in OUTCOMES:
            self.tool_calls.labels(agent, server, "tool", outcome)

    def expect_rules(self, names: Collection[str]) -> None:
        """Begin the series of rules of `gateway.limits` at 0, and end those of all others."""
        for gone in self._rules.difference(names):
            _end(self.limit_used, rule=gone)
        for rule in {*names} - self._rules:
            self.limit_used.labels(rule).set(0)
        self._rules = {*names}

    def count_operation(self, agent: str, server: str, operation: str, *, ok: bool, seconds: float) -> None:
        self.tool_calls.labels(agent, server, operation, "ok" if ok else "error").inc()
        self.tool_call_seconds.labels(agent, server, operation).observe(seconds)

    def _gauge(self, name: str, text: str, *labels: str, across: Across) -> Gauge:
        """A gauge; `across` is prometheus_client's mode of combining the values of several workers."""
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode=across)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        self._counts.append(metric := _Counter(name, text, labels, registry=self.registry))
        return metric

    def _histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        self._counts.append(metric := _Histogram(name, text, labels, buckets=buckets, registry=self.registry))
        return metric


def _running_tasks() -> float:
    try:
        return float(len(asyncio.all_tasks()))
    except RuntimeError:  # outside the event loop
        return 0.0


def _end(gauge: Gauge, *, shared_as: float = math.nan, **labels: str) -> None:
    """Remove the series with these labels."""
    if workers_metrics.joined() is not None:  # shared values cannot be removed
        workers_metrics.mark_gone(gauge, labels, shared_as)
    _remove(gauge, **labels)


def _remove(metric: Counter | Gauge | Histogram, **labels: str) -> None:
    with warnings.catch_warnings(action="ignore"):  # the library warns at each call where values are shared
        metric.remove_by_labels(labels)
