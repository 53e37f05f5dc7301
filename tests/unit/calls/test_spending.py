"""What calls have used, with their nested calls, and when a budget ends one."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, override

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.calls.call import Spent, TurnUsage, Usage, cost_of, usage_of
from pallas_gateway.calls.permit import NO_PERMIT, Excess, Permit
from pallas_gateway.calls.spending import Prices, Spending
from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.config.model.limits import PriceSettings
from pallas_gateway.tasks import TaskOwner
from tests.support.waiting import Gate, cancelled

PRICES = Prices(
    {"openai.gpt-5": PriceSettings(input=1, cached_input=0.1, output=10), "any": PriceSettings(input=2, output=4)}
)


@dataclass
class CountingPermit(Permit):
    """A permit over an account of `most` tokens, whose answers wait at `gate`."""

    most: int
    charged: list[int] = field(default_factory=list)
    gate: Gate | None = None
    is_charged = True

    @override
    async def charge(self, tokens: int) -> Excess | None:
        self.charged.append(tokens)
        if self.gate is not None:
            await self.gate.enter(str(tokens))
        return Excess("rule-1", "The day's budget is used up.", 60) if sum(self.charged) >= self.most else None


def turn(tokens: int, *, model: str = "gpt-5", provider: str = "openai") -> TurnUsage:
    return TurnUsage(model, Usage(input=tokens), provider=provider)


def admitted(
    above: Spending | None = None, permit: Permit = NO_PERMIT, tasks: TaskOwner | None = None, **settings: Any
) -> Spending:
    spending = Spending(above)
    agent = AgentSettings(module="agents.any", **settings)
    spending.admit("nested" if above else "top", agent, PRICES, permit, TaskOwner() if tasks is None else tasks)
    return spending


async def test_a_call_without_a_budget_never_ends() -> None:
    spending = admitted()
    spending.add(turn(10**9), Spent())
    assert await spending.why_ended() is None


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 5000))
async def test_a_budget_is_exceeded_by_at_most_its_last_turn(turns: Sequence[int], most: int) -> None:
    spending, done = admitted(max_tokens_per_call=most), list[int]()
    for tokens in turns:
        if await spending.why_ended() is not None:
            break
        spending.add(turn(tokens), Spent())
        done.append(tokens)

    assert spending.tokens == sum(done)
    assert sum(done[:-1]) < most
    assert spending.tokens >= most or done == list(turns)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 500)), max_size=40))
def test_a_call_has_used_what_its_nested_calls_have_used(turns: Sequence[tuple[int, int]]) -> None:
    top = Spending()
    middle = Spending(top)
    chain = [top, middle, Spending(middle)]
    spent = [Spent(), Spent(), Spent()]
    for depth, tokens in turns:
        chain[depth].add(turn(tokens), spent[depth])
    own = [sum(tokens for depth, tokens in turns if depth == at) for at in range(3)]
    assert [one.tokens for one in chain] == [sum(own), own[1] + own[2], own[2]]
    assert [usage_of(one.turns).total for one in spent] == own


async def test_a_nested_call_ends_with_the_budget_of_a_call_above_it() -> None:
    top = admitted(max_tokens_per_call=100)
    nested, other = admitted(top, max_tokens_per_call=1_000), admitted(top)
    assert await nested.why_ended() is None
    nested.add(turn(100), Spent())
    for one in (nested, other, top):
        ended = await one.why_ended()
        assert ended is not None
        assert (ended.stop, "'top'" in ended.sentence) == ("budget", True)


async def test_a_budget_of_a_nested_call_does_not_end_the_call_above_it() -> None:
    top = admitted(max_tokens_per_call=1_000)
    nested = admitted(top, max_tokens_per_call=100)
    nested.add(turn(100), Spent())
    assert (ended := await nested.why_ended()) is not None
    assert "'nested'" in ended.sentence
    assert await top.why_ended() is None


async def test_a_call_that_goes_on_elsewhere_keeps_what_it_has_used() -> None:
    spending, spent = admitted(max_tokens_per_call=100), Spent()
    spending.resume(60, 0.5)
    assert await spending.why_ended() is None
    spending.add(turn(40), spent)
    assert await spending.why_ended() is not None
    assert usage_of(spent.turns).total == 40
    assert spending.cost == pytest.approx(0.50004)


async def test_each_turn_is_charged_once_and_the_next_waits_for_the_answer() -> None:
    gate, permit = Gate(), CountingPermit(100)
    async with TaskOwner() as tasks:
        spending = admitted(permit=permit, tasks=tasks)
        assert await spending.why_ended() is None
        assert permit.charged == []  # the admission has just asked
        permit.gate = gate
        spending.add(turn(60), Spent())
        assert permit.charged == [60]  # before the next step of the event loop
        asked = asyncio.ensure_future(spending.why_ended())
        await gate.wait_for_entered(1)
        assert not asked.done()
        gate.open()
        assert await asked is None
        spending.add(turn(60), Spent())
        ended = await spending.why_ended()
    assert ended is not None
    assert (ended.stop, ended.sentence) == ("limited", "The day's budget is used up")
    assert permit.charged == [60, 60]


async def test_parallel_turns_are_charged_each_and_one_excess_ends_all() -> None:
    gate = Gate()
    permit = CountingPermit(100, gate=gate)
    async with TaskOwner() as tasks:
        spending = admitted(permit=permit, tasks=tasks)
        for tokens in (40, 50, 60):
            spending.add(turn(tokens), Spent())
        asked = [asyncio.ensure_future(spending.why_ended()) for _ in range(2)]
        await gate.wait_for_entered(3)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(one.done() for one in asked)
        gate.open()
        first, second = await asyncio.gather(*asked)
    assert permit.charged == [40, 50, 60]
    assert first is not None
    assert first == second == await spending.why_ended()


async def test_a_nested_call_asks_before_its_first_turn() -> None:
    permit = CountingPermit(100, [100])
    async with TaskOwner() as tasks:
        nested = admitted(admitted(), permit, tasks)
        ended = await nested.why_ended()
    assert ended is not None
    assert (ended.stop, permit.charged) == ("limited", [100, 0])


async def test_a_call_asks_again_after_its_nested_calls() -> None:
    async with TaskOwner() as tasks:
        permit = CountingPermit(1_000)
        top = admitted(permit=permit, tasks=tasks)
        nested = admitted(top, CountingPermit(1_000), tasks)
        nested.add(turn(50), Spent())
        assert await top.why_ended() is None
        assert await top.why_ended() is None
    assert permit.charged == [0]  # the tokens of a nested call are charged by its own permit


async def test_a_call_that_is_cancelled_while_it_waits_leaves_its_charge_alone() -> None:
    gate = Gate()
    permit = CountingPermit(100, gate=gate)
    async with TaskOwner() as tasks:
        spending = admitted(permit=permit, tasks=tasks)
        spending.add(turn(60), Spent())
        asked = asyncio.ensure_future(spending.why_ended())
        await gate.wait_for_entered(1)
        await asyncio.sleep(0)
        await cancelled(asked)
        assert gate.cancelled == []
        gate.open()


async def test_a_charge_that_fails_is_reported_and_the_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Permit):
        is_charged = True

        @override
        async def charge(self, tokens: int) -> Excess | None:
            raise OSError(f"{tokens} tokens not charged")

    async with TaskOwner() as tasks:
        spending = admitted(permit=Broken(), tasks=tasks)
        spending.add(turn(60), Spent())
        assert await spending.why_ended() is None
    [record] = caplog.records
    assert (record.levelname, "60 tokens not charged" in caplog.text) == ("ERROR", True)


@pytest.mark.parametrize(
    ("provider", "model", "usage", "cost"),
    [
        ("openai", "gpt-5", Usage(input=1_000_000), 1.0),
        ("openai", "gpt-5", Usage(cache_read=1_000_000), 0.1),
        ("openai", "gpt-5", Usage(cache_write=1_000_000), 1.0),
        ("openai", "gpt-5", Usage(output=1_000_000, reasoning=900_000), 10.0),
        ("generic", "any", Usage(cache_read=1_000_000), 2.0),
        ("azure", "gpt-5", Usage(input=1_000_000), None),
        (None, "any", Usage(output=500_000), 2.0),
    ],
)
def test_the_cost_of_a_turn(provider: str | None, model: str, usage: Usage, cost: float | None) -> None:
    assert PRICES.cost(provider, model, usage) == (cost if cost is None else pytest.approx(cost))


async def test_a_budget_of_cost_ends_a_call() -> None:
    spending, spent = admitted(max_cost_per_call=2.0), Spent()
    spending.add(turn(1_999_999), spent)
    assert await spending.why_ended() is None
    spending.add(turn(1), spent)
    assert (ended := await spending.why_ended()) is not None
    assert ended.stop == "budget"
    assert cost_of(spent.turns) == 2.0


async def test_a_budget_of_no_cost_admits_models_that_cost_nothing() -> None:
    spending = admitted(max_cost_per_call=0.0)
    spending.add(turn(5, provider="generic"), Spent())
    assert await spending.why_ended() is None
    spending.add(turn(5), Spent())
    assert await spending.why_ended() is not None
