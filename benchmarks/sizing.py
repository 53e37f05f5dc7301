"""How many replicas, and how large: reckoned from what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.contenders import GATEWAY
from benchmarks.figures import figure

if TYPE_CHECKING:
    from collections.abc import Mapping

UTILISATION = 0.6
"""How busy a core should be at most: above, calls wait for each other."""
CALL_SECONDS = 30
"""How long a call of a real model may take, for the number of calls that run at once."""
RATES = (1, 10, 50, 200)
SPARE = 1.25
"""Of memory, for what is not measured: larger answers, logs, a busy allocator."""


def section(results: Mapping[str, Any]) -> str:
    """The document's part on sizing; empty without the figures it needs."""
    full = results.get("full", {})
    if not {"bare", "tooled"} <= set(full.get("scenarios", {})) or "memory" not in full:
        return ""
    bare, tooled = (_cpu_ms(full["scenarios"][name][GATEWAY]) for name in ("bare", "tooled"))
    per_replica = UTILISATION * 1000 / tooled
    base_mb, kb_per_call = full["memory"][GATEWAY], full["at_once"]["kb_per_call"]
    running = per_replica * CALL_SECONDS
    memory_mb = SPARE * (base_mb + running * kb_per_call / 1024)
    rows = "\n".join(f"| {rate} | {_replicas(rate, per_replica)} | {rate * CALL_SECONDS:,} |" for rate in RATES)
    rate, agents = _rate(full["scenarios"]["tooled"][GATEWAY]), full["memory"]["agents"]
    return f"""## Sizing

**What saturates first is one core.** The gateway's process has one event loop: a call without tools takes
{bare:.1f} ms of it, one with a tool call and two turns of the LLM {tooled:.1f} ms. At {busy(full):.0%} of a core it did
{rate:.0f} such calls/s with 16 clients; more clients then only wait longer. Everything else (memory, descriptors,
downstreams) comes later.

At {UTILISATION:.0%} of a core, where waiting is still short, a replica does **{per_replica:.0f} calls/s** with a tool
call each. If a call takes {CALL_SECONDS} s, because the model does, then {running:,.0f} of them run at once in it
(`gateway.max_in_flight` must allow for that). A running call holds {kb_per_call:.0f} KB, {agents} agents that do
nothing {base_mb:.0f} MB: ask for **one core and {memory_mb:,.0f} MB** per replica, a quarter of it to spare.

| calls/s | replicas of one core | running at once, at {CALL_SECONDS} s each |
| --- | --- | --- |
{rows}

One replica more than that lets one fail or restart. Calls share nothing, so replicas need no stickiness: any balancer
that spreads requests will do. Count calls of peers as calls."""


def busy(full: Mapping[str, Any]) -> float:
    """How much of a core the gateway used under full load."""
    samples = full["scenarios"]["tooled"][GATEWAY]
    return figure([sample["cpu_ms"] * sample["calls_per_second"] / 1000 for sample in samples]).median


def _replicas(rate: int, per_replica: float) -> int:
    return max(1, -int(-rate // per_replica))


def _cpu_ms(samples: list[Mapping[str, float]]) -> float:
    return figure([sample["cpu_ms"] for sample in samples]).median


def _rate(samples: list[Mapping[str, float]]) -> float:
    return figure([sample["calls_per_second"] for sample in samples]).median
