"""Every metric of the gateway: name, help text and labels, in this one file.

Label values come from configuration and from the closed sets below, never from a path or a client. They are known
before the first call, so an agent's series begin at 0: a counter that first appears with value 1 has not increased, and
no alert would fire. `make docs` writes docs/operate/metrics.md from the help texts and the docstrings below them.

Agents of the database have names and models from clients, in any number over time, and counters of deleted agents stay.
So a counter or histogram has a largest number of series, beyond which further agents and models are counted together.
"""

from __future__ import annotations

import asyncio
import math
import platform
import warnings
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, Self, cast, override

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
from pallas_gateway.errors import REFUSALS
from pallas_gateway.telemetry import workers_metrics
from pallas_gateway.telemetry.exposition import WithPauses
from pallas_gateway.telemetry.workers_metrics import WorkersMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from prometheus_client.registry import Collector

    type Across = Literal["livemax", "livemin", "livesum", "livemostrecent"]

DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
"""Seconds; a call takes at least one LLM turn and by default at most ten minutes."""
OPERATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Seconds; a downstream may answer from memory, or be a peer whose calls take minutes."""

STATES = ("pending", "starting", "ready", "failed")
OUTCOMES = ("ok", "error")
HALTS = ("repeat", "oscillation", "deadline", "budget", "limited")
AUTH_REFUSALS = ("no_token", "invalid_token", "no_grant", "insufficient_scope", "verification_unavailable")
QUESTION_KINDS = ("form", "url", "approval", "human_input")
QUESTION_OUTCOMES = ("accepted", "declined", "cancelled", "expired", "unaskable")
OPEN_TASKS, ENDED_TASKS = ("working", "input_required"), ("completed", "failed", "cancelled")
CONTINUATIONS = ("killed", "drained", "answered", "owner")
TOKEN_KINDS = ("input", "output", "cache_read", "cache_write", "reasoning")
"""Kinds of tokens that every provider may have."""
LONGEST_MEASURE_SECONDS = 1.0
"""Longest wait of a scrape for values that another process or the database has; then it shows the last ones."""
MOST_SERIES = 20_000
"""Of one counter or histogram; a hundred agents have at most some thousand."""
OTHER = "(other)"
"""The agent and the model of series beyond that; no agent can have this name."""


class _Counter(Counter):
    left = 0
    """Series that were removed here, and stay in the files that workers share."""

    @override
    def labels(self, *values: Any, **named: Any) -> Self:
        return cast("Self | None", self._metrics.get(values)) or super().labels(*_within(self, values, named))


class _Histogram(Histogram):
    left = 0

    @override
    def labels(self, *values: Any, **named: Any) -> Self:
        return cast("Self | None", self._metrics.get(values)) or super().labels(*_within(self, values, named))


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
        self.has_tasks = False  # without a database, agents have no series of long calls
        self._counts: list[_Counter | _Histogram] = []
        of_the_process = (
            (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR) if registry is None and not folder else ()
        )
        for collector in of_the_process:
            self.registry.register(collector)
        self._add_those_of_calls()
        self._add_those_of_long_calls()
        self._add_those_of_models()
        self._add_those_of_downstreams()
        self._add_those_of_agents()
        self._add_those_of_the_gateway()
        if self._of_all_workers is not None:
            self._of_all_workers.computed = self.instances_live
        self._scraping = asyncio.Lock()
        self._expect_gateway()

    def _add_those_of_calls(self) -> None:
        """Calls."""
        self.send_message = self._counter("pallas_send_message_total", "Calls that ended.", "agent", "outcome")
        """`ok`: answered, also in part. `error`: refused, cancelled or failed; those that `pallas_calls_refused_total`
        does not count have a line in the log.
        """
        self.send_message_seconds = self._histogram(
            "pallas_send_message_duration_seconds",
            "Duration of calls, with their wait for a slot, LLM turns, tools and nested calls.",
            "agent",
            buckets=DURATION_BUCKETS,
        )
        """Slower: see whether `pallas_tool_call_duration_seconds` of a server has grown as well; else it is the
        model."""
        self.calls_in_flight = self._gauge(
            "pallas_calls_in_flight",
            "Calls running now, with those that wait for an answer.",
            "agent",
            across="livesum",
        )
        """Near `max_in_flight`: calls will be refused. Never falling: something hangs; `call_timeout_seconds` ends it.
        """
        self.calls_refused = self._counter("pallas_calls_refused_total", "Calls not started.", "agent", "reason")
        """[Reasons](../use/error-reasons.md). `busy`: raise `max_in_flight` or add machines. `nesting_too_deep`: agents
        call each other in a circle. `limited`: the console's view Usage names the callers.
        """
        self.heartbeats = self._counter("pallas_heartbeats_total", "Heartbeats sent to waiting clients.", "agent")
        """After `heartbeat_seconds` without anything else. Rising with few calls: models or tools are silent for long.
        """
        self.questions = self._counter(
            "pallas_questions_total", "Questions that arose in calls.", "agent", "kind", "outcome"
        )
        """`form` and `url`: of a downstream; `approval`: of a tool; `human_input`: of the agent. `declined`: by the
        caller, or at a limit; `unaskable`: this caller cannot be [asked](../use/asking.md).
        """
        self.questions_open = self._gauge(
            "pallas_questions_open", "Questions that wait for an answer.", "agent", across="livesum"
        )
        self.loops_aborted = self._counter(
            "pallas_agent_loop_aborted_total", "Agent loops ended by the gateway.", "agent", "reason"
        )
        """`repeat`, `oscillation`: the same tool rounds again and again, which `loop halted` in the log names.
        `deadline`: `call_timeout_seconds`. `budget`: the [budget of the call](limits.md#budgets-of-a-call); `limited`:
        that of the day.
        """

    def _add_those_of_long_calls(self) -> None:
        """Long calls."""
        self.tasks = self._gauge(
            "pallas_tasks", "Open long calls in the database, by status.", "status", across="livemostrecent"
        )
        """Of all replicas: do not add them up. `input_required`: they wait for their callers."""
        self.tasks_created = self._counter(
            "pallas_tasks_created_total", "Calls that have become long calls.", "agent", "api"
        )
        """[Which calls](../use/long-calls.md#which-calls)."""
        self.tasks_ended = self._counter("pallas_tasks_ended_total", "Long calls that have ended.", "agent", "status")
        """`failed`: no process could go on, or the turn of a thread is an error."""
        self.task_continued = self._counter(
            "pallas_task_continued_total", "Runs of long calls that another process had begun.", "agent", "why"
        )
        """`killed`: that process has ended; `drained`: it has left the call; `answered`: its question was answered;
        `owner`: by a request. Many `killed`: see `worker ended` in the log.
        """
        self.task_lost_tools = self._counter(
            "pallas_task_lost_tools_total", "Tools of long calls whose result was lost with their process.", "agent"
        )
        """They are not run again; the model reads that the result is unknown."""
        self.task_wait_seconds = self._histogram(
            "pallas_task_wait_seconds",
            "Time from which a process could have gone on with a long call until one does.",
            buckets=DURATION_BUCKETS,
        )
        """Above some seconds: no free slot, or the agent is not up."""

    def _add_those_of_models(self) -> None:
        """Models."""
        self.llm_turns = self._counter("pallas_llm_turns_total", "LLM turns that reported usage.", "agent", "model")
        """More per call than usual: tools or the instruction have changed."""
        self.llm_tokens = self._counter("pallas_llm_tokens_total", "Tokens, by kind.", "agent", "model", "kind")
        """`input`, `cache_read` and `cache_write` are the prompt; `output` includes `reasoning`; `cache_hit` repeats
        `cache_read` for providers that cache by themselves. A falling share of `cache_read`: prompts no longer begin
        alike.
        """
        self.caller_tokens = self._counter(
            "pallas_caller_tokens_total", "Tokens of calls by static keys.", "caller", "agent"
        )
        """Counted when a call ends, for the outermost caller, `key:NAME`. Other callers: see [usage](limits.md#usage).
        """
        self.cost = self._counter("pallas_cost_total", "Cost of LLM turns, by `gateway.prices`.", "agent", "model")
        """Only of models with [prices](limits.md#prices)."""
        self.llm_provider_up = self._gauge(
            "pallas_llm_provider_up",
            "1 when the LLM provider passed its last check for each model in use.",
            "provider",
            across="livemostrecent",
        )
        """0: the log and `get_health` have the reason."""

    def _add_those_of_downstreams(self) -> None:
        """Downstreams."""
        self.tool_calls = self._counter(
            "pallas_tool_calls_total",
            "Operations asked of downstreams: tools, prompts and resources.",
            *("agent", "server", "operation", "outcome"),
        )
        """Error results and cancelled operations are `error`. `server` is the configured name, also of peers; `other`
        for one that a model attached.
        """
        self.tool_call_seconds = self._histogram(
            "pallas_tool_call_duration_seconds",
            "Duration of operations asked of downstreams.",
            *("agent", "server", "operation"),
            buckets=OPERATION_BUCKETS,
        )
        self.downstream_up = self._gauge(
            "pallas_downstream_up",
            "1 when a downstream answered its last probe, or the last call that noticed a change.",
            *("agent", "server"),
            across="livemostrecent",
        )
        """0: also where its list of tools cannot be read. `pallas-gateway health AGENT` has the reason."""

    def _add_those_of_agents(self) -> None:
        """Agents."""
        self.agent_info = self._gauge("pallas_agent_info", "1 per configured agent.", "agent", "port", across="livemax")
        """`port` is its own, else that of the gateway."""
        self.agent_state = self._gauge(
            "pallas_agent_state", "1 for the state an agent is in.", "agent", "state", across="livemax"
        )
        """`failed`: `/readyz` and the log have the reason."""
        self.agent_state_changes = self._counter(
            "pallas_agent_state_changes_total", "Changes of state, by the new one.", "agent", "state"
        )
        self.health_status = self._gauge(
            "pallas_agent_health_status",
            "Last check: 1 ok, 0.5 degraded, 0 error.",
            "agent",
            across="livemostrecent",
        )
        """0.5: a downstream, the model's provider, or a tool filter. 0: the agent takes no calls."""
        self.instances_live = self._gauge(
            "pallas_instances_live", "Instances made for calls and not yet released.", "agent", across="livesum"
        )
        """Above `pallas_calls_in_flight` for minutes: see `instance not released` in the log."""
        self.stored_agent_changes = self._counter(
            "pallas_stored_agent_changes_total", "Changes of agents of the database that were applied.", "outcome"
        )
        """In each worker. `error`: see `agent not replaced` in the log."""
        self.stored_agents_kept_back = self._gauge(
            "pallas_stored_agents_kept_back",
            "Agents of the database whose present version did not start; they run an earlier one.",
            across="livemax",
        )
        """The agent's `reason` is at `/api/v1/agents`."""

    def _add_those_of_the_gateway(self) -> None:
        """The gateway."""
        self.up = self._gauge("pallas_up", "1 while the gateway runs.", across="livemax")
        self.workers = self._gauge(
            "pallas_workers", "Processes that serve; more than 1 with `serve --workers`.", across="livesum"
        )
        self.worker_restarts = self._counter("pallas_worker_restarts_total", "Workers replaced after they had ended.")
        """See `worker ended` in the log; `SIGKILL` mostly means that memory ran out."""
        self.event_loop_tasks = self._gauge(
            "pallas_event_loop_tasks", "Tasks of the event loop that have not ended.", across="livesum"
        )
        """Growing while `pallas_calls_in_flight` does not: please report it."""
        self.build_info = self._gauge(
            "pallas_build_info", "Version of the gateway and of Python.", "version", "python", across="livemax"
        )
        self.config_reload_successful = self._gauge(
            "pallas_config_last_reload_successful",
            "1 when the last load of the configuration came out whole.",
            across="livemin",
        )
        """0: see the log; the gateway goes on with what it has."""
        self.config_reload_time = self._gauge(
            "pallas_config_last_reload_timestamp_seconds",
            "When the configuration was last loaded whole, in seconds since 1970.",
            across="livemin",
        )
        self.config_reloads = self._counter("pallas_config_reloads_total", "Reloads, by outcome.", "outcome")
        """In each worker. Growing by itself with `--reload`: something writes the project's files."""
        self.auth_refused = self._counter(
            "pallas_auth_refused_total", "Requests that authentication turned away.", "reason"
        )
        """`no_token`: also the first step of a login. `invalid_token`: an expired key, or a guess; see the log.
        `verification_unavailable`: the authorization server's keys cannot be fetched.
        """
        self.threads_database_up = self._gauge(
            "pallas_threads_database_up",
            "1 while the database of threads can be read and written.",
            "kind",
            across="livemin",
        )
        """Also of [limits](limits.md#several-gateways) with `store: database`; `kind` is `sqlite` or `postgresql`. 0:
        see `threads database unavailable` in the log.
        """
        self.certificate_expires = self._gauge(
            "pallas_certificate_expires_seconds",
            "When the certificate expires, in seconds since 1970.",
            "setting",
            across="livemin",
        )
        """Or the first of its issuers in the file. Renew it, then reload."""
        self.key_expires = self._gauge(
            "pallas_key_expires_seconds",
            "When a static key expires, in seconds since 1970.",
            "name",
            across="livemostrecent",
        )
        """Missing for keys without `not_after`."""
        self.fast_path = self._gauge(
            "pallas_fast_path", "1 for a fast path that is on, 0 for one that is off.", "name", across="livemin"
        )
        """0: see `fast path off` in the log; calls cost more CPU. [Fast paths](reloading.md#fast-paths) of a library
        that no agent uses are missing.
        """
        self.limit_used = self._gauge(
            "pallas_limit_used_ratio",
            "The largest share of a limit that a caller or agent has used, by rule of gateway.limits.",
            "rule",
            across="livemostrecent",
        )
        """1: the next call is refused; more with `enforce: false`, or after a [limit](limits.md) was lowered. The log
        and `usage` name the caller.
        """
        self.measure: Callable[[], asyncio.Task[None]] | None = None
        """Begins to show values that another process or the database has; called before each scrape."""
        self._measuring: asyncio.Task[None] | None = None
        self._rules: set[str] = set()
        self._audit_up = self._gauge(
            "pallas_audit_up", "1 while lines can be written to the audit log.", "output", across="livemostrecent"
        )
        """0: see the log; with `audit_required` calls are refused."""
        self._audit_sequence = self._gauge(
            "pallas_audit_sequence", "Number of the last line of the audit log.", "output", across="livemostrecent"
        )
        """Never falls while the file is the same: compare it with a kept head."""
        self._audit_head = self._gauge(
            "pallas_audit_head",
            "First 13 hexadecimal digits of the hash of the last line of the audit log, as a number.",
            "output",
            across="livemostrecent",
        )
        """`printf '%013x' $(printf %.0f VALUE)` gives the digits of the [head](audit.md#heads)."""
        self._audited = ""

    @property
    def exposed(self) -> Collector:
        """The metrics for a scraper: in one of several workers those of all workers."""
        return self._of_all_workers or self.registry

    async def exposition(self, encode: Callable[[Collector], bytes]) -> bytes:
        """Return the metrics as `encode` writes them, in a thread: 100 agents have 7,000 series, which take 70 ms."""
        async with self._scraping:  # one scrape at a time
            await self.update()
            return await asyncio.to_thread(encode, WithPauses(self.exposed))

    async def update(self) -> None:
        """Set the values that other processes have, then those of this one."""
        if self.measure is not None:
            if self._measuring is None or self._measuring.done():
                self._measuring = self.measure()
            await asyncio.wait({self._measuring}, timeout=LONGEST_MEASURE_SECONDS)
        self.refresh()

    def refresh(self) -> None:
        """Set the values that this process computes for each scrape, and share them with the other workers."""
        self.event_loop_tasks.set(_running_tasks())
        if self._of_all_workers is not None:
            self._of_all_workers.refresh()

    def show_limits(self, ratios: Mapping[str, float]) -> None:
        """Show the used share of rules, by their names."""
        for rule, ratio in ratios.items():
            if rule in self._rules:
                self.limit_used.labels(rule).set(ratio)

    def show_tasks(self, numbers: Mapping[str, int]) -> None:
        """Show the numbers of open long calls by their status."""
        for status in OPEN_TASKS:
            self.tasks.labels(status).set(numbers.get(status, 0))

    def show_audit(self, state: tuple[str, int, int, bool] | None) -> None:
        """Show the state of the audit log, the values of an `AuditState`; None if it is off."""
        output, sequence, head, is_up = state or ("", 0, 0, False)
        if self._audited not in {"", output}:
            for gauge in (self._audit_up, self._audit_sequence, self._audit_head):
                _end(gauge, output=self._audited)
        self._audited = output
        if state is not None:
            self._audit_up.labels(output).set(is_up)
            self._audit_sequence.labels(output).set(sequence)
            self._audit_head.labels(output).set(head)

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
        self._expect_tasks(agent)

    def _expect_tasks(self, agent: str) -> None:
        if not self.has_tasks:
            return
        self.task_lost_tools.labels(agent)
        for api in ("mcp", "threads"):
            self.tasks_created.labels(agent, api)
        for status in ENDED_TASKS:
            self.tasks_ended.labels(agent, status)
        for why in CONTINUATIONS:
            self.task_continued.labels(agent, why)

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
