"""How many replicas, how large, and what of one is used up first: reckoned from what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import GATEWAY
from benchmarks.figures import figure

if TYPE_CHECKING:
    from collections.abc import Mapping

UTILISATION = 0.6
"""How busy a core should be at most: above, calls wait for each other."""
CALL_SECONDS = 30
"""How long a call of a real model may take, for the number of calls that run at once."""
RATES = (1, 10, 50, 200, 1000)
SPARE = 1.25
"""Of memory, for what is not measured: larger answers, logs, a busy allocator."""
DEFAULT_MAX_IN_FLIGHT = 256
SOFT_LIMIT_OF_FILES = 1024
"""What a Linux system gives a process that asks for no more."""
A_POD_MB = 1024


@dataclass(frozen=True)
class Replica:
    """One replica as measured. Times in ms of CPU, memory as named; `descriptors` when idle and for a running call."""

    bare_ms: float
    tooled_ms: float
    tooled_per_second: float
    idle_mb: float
    agents: int
    kb_per_call: float
    descriptors: float
    descriptors_per_call: float

    @property
    def per_second(self) -> float:
        """Calls with a tool call that one core does while waiting is short."""
        return UTILISATION * 1000 / self.tooled_ms

    @property
    def running(self) -> float:
        """Calls that run at once then."""
        return self.per_second * CALL_SECONDS

    @property
    def memory_mb(self) -> float:
        """What to ask for."""
        return SPARE * (self.idle_mb + self.running * self.kb_per_call / 1024)

    @property
    def busy(self) -> float:
        """How much of a core was used under full load."""
        return self.tooled_ms * self.tooled_per_second / 1000

    def limits(self) -> list[tuple[str, float]]:
        """What a replica has only so much of, and the calls/s at which it is used up; the first to be so first."""
        memory_left_kb = 1024 * (A_POD_MB / SPARE - self.idle_mb)
        found = [
            (f"one core at {UTILISATION:.0%}", self.per_second),
            (
                f"`gateway.max_in_flight` at its default of {DEFAULT_MAX_IN_FLIGHT}",
                DEFAULT_MAX_IN_FLIGHT / CALL_SECONDS,
            ),
            (f"{A_POD_MB:,} MB of memory, a quarter to spare", memory_left_kb / self.kb_per_call / CALL_SECONDS),
        ]
        if self.descriptors_per_call:
            left = SOFT_LIMIT_OF_FILES - self.descriptors
            title = f"{SOFT_LIMIT_OF_FILES:,} open files (`ulimit -n`)"
            found.append((title, left / self.descriptors_per_call / CALL_SECONDS))
        return sorted(found, key=lambda limit: limit[1])


def section(results: Mapping[str, Any]) -> str:
    """The document's part on sizing; empty without the figures it needs."""
    full = results.get("full", {})
    if not {"bare", "tooled"} <= set(full.get("scenarios", {})) or not {"memory", "at_once"} <= set(full):
        return ""
    one = replica(full)
    (first, _), *_ = limits = one.limits()
    used_up = "\n".join(f"| {what} | {rate:,.1f} | {rate * CALL_SECONDS:,.0f} |" for what, rate in limits)
    return f"""## Sizing

**What saturates first is {first}**, of what a replica has if nothing is set; reckoned with a tool call in each call
and {CALL_SECONDS} s per call, because the model takes that:

| used up | at calls/s | running at once |
| --- | --- | --- |
{used_up}

All but the core is a setting. The core is not, as a process has one event loop: a call without tools takes
{one.bare_ms:.1f} ms of it, one with a tool call and two turns of the LLM {one.tooled_ms:.1f} ms.
At {one.busy:.0%} of a core it did {one.tooled_per_second:.0f} such calls/s with 16 clients; more clients then only wait
longer.

At {UTILISATION:.0%} of a core, where waiting is still short, a replica does **{one.per_second:.0f} calls/s** with a tool
call each, and {one.running:,.0f} of them run at once in it: set `gateway.max_in_flight` to that, and the limit of open
files to match. A running call holds {one.kb_per_call:.0f} KB, {one.agents} agents that do nothing {one.idle_mb:.0f} MB:
ask for **one core and {one.memory_mb:,.0f} MB** per replica, a quarter of it to spare. Slower models need more memory
and more places, but no more cores.

| calls/s | replicas of one core | memory of all | running at once, at {CALL_SECONDS} s each |
| --- | --- | --- | --- |
{_cluster(one)}

One replica more than that lets one fail or restart. A machine with several cores takes one worker (`--workers`) for
each instead of a replica for each. Calls share nothing, so replicas need no stickiness: any balancer that spreads
requests will do. Count calls of peers as calls."""  # noqa: E501  the figures are shorter than their names


def replica(full: Mapping[str, Any]) -> Replica:
    """What was measured of one."""
    tooled, at_once = full["scenarios"]["tooled"][GATEWAY], full["at_once"]
    return Replica(
        bare_ms=_median(full["scenarios"]["bare"][GATEWAY], "cpu_ms"),
        tooled_ms=_median(tooled, "cpu_ms"),
        tooled_per_second=_median(tooled, "calls_per_second"),
        idle_mb=full["memory"][GATEWAY],
        agents=full["memory"]["agents"],
        kb_per_call=at_once["kb_per_call"],
        descriptors=at_once.get("descriptors", 0),
        descriptors_per_call=at_once.get("descriptors_per_call", 0),
    )


def _cluster(one: Replica) -> str:
    rows = [(rate, max(1, -int(-rate // one.per_second))) for rate in RATES]
    return "\n".join(
        f"| {rate:,} | {count:,} | {count * one.memory_mb / 1024:,.1f} GB | {rate * CALL_SECONDS:,} |"
        for rate, count in rows
    )


def _median(samples: list[Mapping[str, float]], key: str) -> float:
    return figure([sample[key] for sample in samples]).median
