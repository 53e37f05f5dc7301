"""How many replicas, how large, and what of one is used up first: reckoned from what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import GATEWAY
from benchmarks.fakes.llm import PIECES as PIECES_MEASURED
from benchmarks.figures import figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UTILISATION = 0.6
"""How busy a core should be at most: above, calls wait for each other."""
CALL_SECONDS = 30
"""How long a call of a real model may take, for the number of calls that run at once."""
TURNS = 2
"""Of the LLM, in a call with a tool call."""
PIECES = 300
"""That a turn's answer is streamed in: about so many tokens."""
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
    piece_ms: float
    idle_mb: float
    agents: int
    kb_per_call: float
    descriptors: float
    descriptors_per_call: float

    @property
    def call_ms(self) -> float:
        """A call with a tool call whose answers are as long as those of a real model."""
        return self.tooled_ms + TURNS * (PIECES - PIECES_MEASURED) * self.piece_ms

    @property
    def per_second(self) -> float:
        """Such calls that one core does while it is busy so far."""
        return UTILISATION * 1000 / self.call_ms

    @property
    def running(self) -> float:
        """Calls that run at once then."""
        return self.per_second * CALL_SECONDS

    @property
    def memory_mb(self) -> float:
        """What to ask for."""
        return SPARE * (self.idle_mb + self.running * self.kb_per_call / 1024)

    @property
    def files(self) -> float:
        """That are open then, sockets among them."""
        return self.descriptors + self.running * self.descriptors_per_call

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
    pieces = results.get("growth", {}).get("growth", {}).get("pieces")
    has_all = {"bare", "tooled"} <= set(full.get("scenarios", {})) and {"memory", "at_once"} <= set(full)
    if not has_all or pieces is None:
        return ""
    one = replica(full, pieces)
    (first, _), *_ = limits = one.limits()
    used_up = "\n".join(f"| {what} | {rate:,.1f} | {rate * CALL_SECONDS:,.0f} |" for what, rate in limits)
    return f"""## Sizing

For calls of {TURNS} turns of the LLM with a tool call between, {PIECES} streamed pieces (tokens, roughly) each turn, {CALL_SECONDS} s
in all. **What saturates first is {first}**:

| used up | at calls/s | running at once |
| --- | --- | --- |
{used_up}

All but the core are [settings](operate/configuration.md#gateway), the memory is an example. Of the core, a call without
tools takes {one.bare_ms:.1f} ms, one with a tool call and two turns {one.tooled_ms:.1f} ms, and each streamed piece
{one.piece_ms:.3f} ms more, so such a call takes **{one.call_ms:.0f} ms**; histories and images
[cost more](#how-the-cost-grows). At {one.busy:.0%} of a core, 16 clients had {one.tooled_per_second:.0f} calls/s without long streams.

At {UTILISATION:.0%} of a core, which leaves room for bursts, a replica does **{one.per_second:.1f} calls/s** of that kind, and
{one.running:,.0f} of them run at once: set `gateway.max_in_flight` to no less, and allow {one.files:,.0f} open files. A running
call holds {one.kb_per_call:.0f} KB, {one.agents} idle agents {one.idle_mb:.0f} MB after 500 calls: request **one core and
{one.memory_mb:,.0f} MB** per replica, a quarter of it to spare. Slower models need more memory and places, but no more cores.

| calls/s | replicas of one core | memory of all | running at once, at {CALL_SECONDS} s each |
| --- | --- | --- | --- |
{_cluster(one)}

Add one replica, so that one may fail or restart. On one machine, take a worker (`--workers`) for each core instead. Count
calls of peers as calls. `pallas_calls_in_flight` and `pallas_calls_refused_total` show how full a replica is. Any balancer
will do; [From one machine to many](operate/from-one-machine-to-many.md) has the settings that replicas share."""  # noqa: E501  the figures are shorter than their names


def replica(full: Mapping[str, Any], pieces: Sequence[Mapping[str, float]]) -> Replica:
    """What was measured of one; `pieces` is the curve of that name."""
    tooled, at_once = full["scenarios"]["tooled"][GATEWAY], full["at_once"]
    least, most = pieces[0], pieces[-1]
    return Replica(
        bare_ms=_median(full["scenarios"]["bare"][GATEWAY], "cpu_ms"),
        tooled_ms=_median(tooled, "cpu_ms"),
        tooled_per_second=_median(tooled, "calls_per_second"),
        piece_ms=(most["cpu_ms"] - least["cpu_ms"]) / (most["at"] - least["at"]),
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
