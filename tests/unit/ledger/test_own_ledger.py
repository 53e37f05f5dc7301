"""The ledger of a gateway: admissions, charges and ends of calls."""

from __future__ import annotations

from typing import Any

import pytest

from pallas_gateway.calls.permit import NO_PERMIT, CallEnd
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.errors import CallLimitedError
from pallas_gateway.ledger.own_ledger import OwnLedger
from pallas_gateway.ledger.protocol import CallEntry

ENDED = CallEnd("ok", "endTurn", 0.1, 5)


def settings(*rules: dict[str, Any]) -> GatewaySettings:
    return GatewaySettings.model_validate({"limits": {"rules": rules}})


def ledger(*rules: dict[str, Any]) -> OwnLedger:
    made = OwnLedger()
    made.use(settings(*rules))
    return made


def entry(call_id: str, *, caller: str = "key:ann", agent: str = "echo", parent: str | None = None) -> CallEntry:
    return CallEntry(call_id, agent, caller, caller, None, "mcp", parent)


async def is_refused(of: OwnLedger, asked: CallEntry) -> bool:
    try:
        await of.begin(asked)
    except CallLimitedError:
        return True
    return False


async def test_without_rules_nothing_is_counted() -> None:
    of = ledger()
    assert await of.begin(entry("a")) is NO_PERMIT
    assert of.ratios() == {}


async def test_an_ended_call_leaves_room_for_another() -> None:
    of = ledger({"calls_at_once": 1})
    permit = await of.begin(entry("a"))
    assert await is_refused(of, entry("b"))
    permit.end(ENDED)
    permit.end(ENDED)
    assert not await is_refused(of, entry("b"))


@pytest.mark.parametrize(("rule", "charged"), [({"tokens_per_day": 9}, True), ({"calls_at_once": 9}, False)])
async def test_turns_are_charged_only_where_a_rule_limits_tokens(rule: dict[str, Any], *, charged: bool) -> None:
    permit = await ledger(rule).begin(entry("a"))
    assert permit.is_charged is charged


async def test_tokens_of_nested_calls_use_up_the_budget_that_an_agent_has_for_all_callers() -> None:
    of = ledger({"agent": "search", "per": "agent", "tokens_per_day": 10})
    outer = await of.begin(entry("a"))
    assert not outer.is_charged
    nested = await of.begin(entry("b", agent="search", parent="a"))
    assert await nested.charge(9) is None
    other = await of.begin(entry("c", caller="key:bob", agent="search"))
    assert await nested.charge(1) is not None
    excess = await other.charge(0)
    assert excess is not None
    assert excess.rule == "rule-1"
    assert excess.sentence.startswith("Rule 'rule-1' limits tokens per day to 10. Try again in ")
    assert await is_refused(of, entry("d", caller="key:eve", agent="search", parent="a"))
    assert not await is_refused(of, entry("e"))


async def test_a_lower_budget_holds_for_running_calls_from_the_reload_on() -> None:
    of = ledger({"tokens_per_day": 100})
    permit = await of.begin(entry("a"))
    assert await permit.charge(50) is None
    of.use(settings({"tokens_per_day": 50}))
    assert await permit.charge(0) is not None
    of.use(settings({"tokens_per_day": 51}))
    assert await permit.charge(0) is None
