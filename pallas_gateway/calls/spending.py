"""The tokens and the cost of one call, with those of its nested calls, the limits of its tools, and its budgets.

Each LLM turn is added when it ends: to its own call, to the calls above it, and to the caller's account in the limits.
Before the next turn begins, `ended` has the answer of the limits; so a budget is exceeded by at most one turn of each
agent that works at that moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pallas_gateway.calls.call import Spent, TurnUsage, Usage
    from pallas_gateway.calls.permit import Excess, Permit
    from pallas_gateway.config.model.agents import AgentSettings
    from pallas_gateway.config.model.limits import PriceSettings
    from pallas_gateway.tasks import TaskOwner


_TOKENS_OF_A_PRICE = 1_000_000
_log = logging.getLogger("pallas.calls")


class ToolLimits:
    """The calls of tools in one call, by globs over `server/tool`, for all agents of a workflow together."""

    def __init__(self, most: Mapping[str, int] | None = None) -> None:
        self._most = most or {}
        self._calls: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """True if there is a limit."""
        return bool(self._most)

    def acquire(self, names: Collection[str]) -> str | None:
        """Count a call of a tool, which may have several names; if it must not run, return the limit as a clause."""
        matching = self._matching(names)
        if (full := next((glob for glob in matching if self._calls[glob] >= self._most[glob]), None)) is not None:
            return f"the limit of one call for tools of '{full}' is {self._most[full]}, and it is reached"
        self._calls.update(matching)
        return None

    def release(self, names: Collection[str]) -> None:
        """Take back the count of a tool call that did not run."""
        self._calls.subtract(self._matching(names))

    def _matching(self, names: Collection[str]) -> list[str]:
        return [glob for glob in self._most if any(fnmatchcase(name, glob) for name in names)]


NO_TOOL_LIMITS = ToolLimits()


class Prices:
    """The prices of a configuration: by `provider.model`, or by `model` for those of every provider."""

    def __init__(self, by_model: Mapping[str, PriceSettings] | None = None) -> None:
        self._by_model = by_model or {}
        self._reported: set[str] = set()

    def of(self, provider: str | None, model: str) -> PriceSettings | None:
        """Return the price of a model; `provider` is its name in fast-agent's settings."""
        return self._by_model.get(f"{provider}.{model}") or self._by_model.get(model)

    def cost(self, provider: str | None, model: str, usage: Usage) -> float | None:
        """Return the cost of one turn; None for a model without a price."""
        price = self.of(provider, model) if self._by_model else None
        if price is None:
            return None
        read = price.input if price.cached_input is None else price.cached_input
        write = price.input if price.cache_write is None else price.cache_write
        cost = usage.input * price.input + usage.cache_read * read
        cost += usage.cache_write * write + usage.output * price.output
        return cost / _TOKENS_OF_A_PRICE

    def report_unpriced(self, provider: str | None, model: str) -> None:
        """Warn, once for each model, that a budget of cost does not include its turns."""
        name = f"{provider}.{model}" if provider else model
        if name not in self._reported:
            self._reported.add(name)
            # Once for each model, if an agent has `max_cost_per_call`.
            _log.warning("model has no price", extra={"model": name})


NO_PRICES = Prices()


@dataclass(frozen=True, slots=True)
class Ended:
    """The budget that has ended a call: its own (`budget`) or the day's (`limited`), with a sentence for the caller."""

    stop: Literal["budget", "limited"]
    sentence: str


class Spending:
    """The spending of one call; `above` is that of the call which makes it.

    Attributes:
        tokens: input, cached input and output, those of nested calls included.
        cost: by the prices of the models, as `tokens`.
        tools: the limits of single tools.
        nested: the LLM turns of nested calls.
        ended: the budget that has ended the call.
    """

    def __init__(self, above: Spending | None = None) -> None:
        self.tokens = 0
        self.cost = 0.0
        self.nested: tuple[TurnUsage, ...] = ()
        self.tools = NO_TOOL_LIMITS
        self.ended: Ended | None = None
        self._above = above
        self._agent = ""
        self._most_tokens: int | None = None
        self._most_cost: float | None = None
        self._prices = NO_PRICES
        self._charged: tuple[Permit, TaskOwner] | None = None
        self._charges: tuple[asyncio.Task[None], ...] = ()
        self._excess: Excess | None = None
        # A nested call asks before its first turn; the admission of any other call has just asked.
        self._answered_at = -1 if above is not None else 0

    def admit(self, agent: str, settings: AgentSettings, prices: Prices, permit: Permit, tasks: TaskOwner) -> None:
        """Use the budgets of the agent and the permit of the call; `tasks` owns the charges."""
        self._agent, self._prices = agent, prices
        self._most_tokens, self._most_cost = settings.max_tokens_per_call, settings.max_cost_per_call
        if settings.tool_limits:
            self.tools = ToolLimits(settings.tool_limits)
        if permit.is_charged:
            self._charged = permit, tasks

    def resume(self, tokens: int, cost: float) -> None:
        """Add what the call had used in another process, which the limits have counted already."""
        for one in self._with_those_above():
            one.tokens += tokens
            one.cost += cost
        self._answered_at = -1

    def add(self, turn: TurnUsage, spent: Spent) -> None:
        """Add a turn that has ended, with its cost, to `spent` and to all budgets."""
        if (price := self._prices.cost(turn.provider, turn.model, turn.usage)) is not None:
            turn = replace(turn, cost=price)
        spent.turns += (turn,)
        tokens, cost = turn.usage.total, turn.cost or 0.0
        for one in self._with_those_above():
            one.tokens += tokens
            one.cost += cost
            if one is not self:
                one.nested += (turn,)
            if turn.cost is None and one._most_cost is not None:
                one._prices.report_unpriced(turn.provider, turn.model)
        if self._charged is not None:
            self._charge(tokens, *self._charged)

    async def why_ended(self) -> Ended | None:
        """Return the budget that ends the call before its next turn, once all charges are answered."""
        if self.ended is not None:
            return self.ended
        self.ended = next((over for one in self._with_those_above() if (over := one._own_excess()) is not None), None)
        if self.ended is None and self._charged is not None:
            self.ended = await self._over_day(*self._charged)
        return self.ended

    def _own_excess(self) -> Ended | None:
        if self._most_tokens is not None and self.tokens >= self._most_tokens:
            used, most = f"{self.tokens:,} tokens", f"{self._most_tokens:,}"
        elif self._most_cost is not None and self.cost >= self._most_cost and self.cost > 0:
            used, most = f"{self.cost:.6g} of cost", f"{self._most_cost:.6g}"
        else:
            return None
        return Ended(
            "budget",
            f"a call of the agent '{self._agent}' has used {used}, nested calls included, and its budget is {most}. "
            "Ask for less in one call, or divide the task",
        )

    async def _over_day(self, permit: Permit, tasks: TaskOwner) -> Ended | None:
        if self._answered_at != self.tokens:  # nested calls have been charged since the last answer
            self._charge(0, permit, tasks)
        if self._charges:
            await asyncio.wait(self._charges)  # a call that is cancelled here does not cancel its charges
        return Ended("limited", self._excess.sentence.rstrip(".")) if self._excess is not None else None

    def _charge(self, tokens: int, permit: Permit, tasks: TaskOwner) -> None:
        self._answered_at = self.tokens
        # Eager, so that a call that ends at once has sent its charge.
        task = tasks.spawn(self._ask(permit, tokens), name="charge", report=True, is_eager=True)
        if not task.done():
            self._charges += (task,)
            task.add_done_callback(self._forget)

    async def _ask(self, permit: Permit, tokens: int) -> None:
        self._excess = await permit.charge(tokens) or self._excess

    def _forget(self, task: asyncio.Task[None]) -> None:
        """Let go of a charge, whose context refers to the whole call."""
        self._charges = tuple(one for one in self._charges if one is not task)

    def _with_those_above(self) -> Iterator[Spending]:
        one: Spending | None = self
        while one is not None:
            yield one
            one = one._above
