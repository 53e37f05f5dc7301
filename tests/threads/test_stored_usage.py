"""Usage of days in a database: the sums of several processes, also while it was away, and what is not kept."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, text

from pallas_gateway.calls.used import Used
from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.features.usage.stored_usage import StoredUsage
from pallas_gateway.features.usage.usage_table import DAY_SECONDS, OTHERS
from pallas_gateway.identity.caller import Caller
from pallas_gateway.identity.grants import Grants
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from pallas_gateway.shared.database.tables import agents
from tests.support.stored_threads import services

ALL = ("caller", "agent", "model")
ANN, BEN = (Caller(name, kind="key", authenticated=True, owner=f"key:{name}") for name in ("ann", "ben"))
ONE = Used(calls=1, input=10, output=5, cost=0.25)


class Clock:
    day = 20_000

    def __call__(self) -> float:
        return self.day * DAY_SECONDS + 5.0


@asynccontextmanager
async def usage_at(
    url: str, clock: Clock | None = None, most: int = 10_000, **gateway: Any
) -> AsyncGenerator[StoredUsage]:
    async with services(url, try_again_seconds=3600) as stored:
        usage = StoredUsage(stored.database, clock or Clock(), most=most)
        usage.use(GatewaySettings(**gateway))
        stored.database.add(usage)
        yield usage


async def rows(usage: StoredUsage, by: tuple[str, ...] = ALL, days: int = 7, **only: Any) -> list[tuple[Any, ...]]:
    found, _ = await usage.read(days, by, **only)
    return [(one.day, *one.names, one.used.calls + one.used.refused + one.used.nested, one.failures) for one in found]


async def test_sums_of_several_processes_and_starts_are_added_up(database_url: str) -> None:
    clock = Clock()
    async with usage_at(database_url, clock) as one, usage_at(database_url, clock) as other:
        for usage in (one, other, one):
            usage.add(ANN, "poet", "gpt", "", ONE)
        one.add(ANN, "poet", "gpt", "llm_error", ONE)
        one.add(BEN, "poet", "", "limited", Used(refused=1))
        one.add(BEN, "poet", "other", "", Used(nested=2))
        await other.write()
        assert await rows(one, ("agent",)) == [(20_000, "poet", 7, {"llm_error": 1, "limited": 1})]
    clock.day += 1
    async with usage_at(database_url, clock) as usage:  # which has what the others have written at their stop
        usage.add(ANN, "poet", "gpt", "", ONE)
        assert await rows(usage) == [
            (20_001, "key:ann", "poet", "gpt", 1, {}),
            (20_000, "key:ann", "poet", "gpt", 4, {"llm_error": 1}),
            (20_000, "key:ben", "poet", "", 1, {"limited": 1}),
            (20_000, "key:ben", "poet", "other", 2, {}),
        ]
        [sums], is_complete = await usage.read(1, (), caller=ANN)
        assert (sums.used, is_complete) == (ONE, True)
        assert await rows(usage, ("model",), days=1) == [(20_001, "gpt", 1, {})]
        assert await rows(usage, ("agent",), caller=BEN) == [(20_000, "poet", 3, {"limited": 1})]
        assert await usage.first_day() == 20_000


async def test_owners_read_no_day_on_which_others_had_an_agent_of_the_name(database_url: str) -> None:
    clock = Clock()
    day = DAY_SECONDS * 1000
    values: list[tuple[Any, ...]] = [
        (f"{name} {made}", name, name, owner.owner, owner.name, [], 1, made * day, made * day, ended, False)
        for name, made, owner, ended in (
            ("poet", 19_000, BEN, 20_001 * day + 7), ("poet", 20_001, ANN, None), ("bard", 20_001, ANN, None),
            ("ode", 20_000, ANN, 20_001 * day + 7), ("ode", 20_001, ANN, None), ("song", 20_000, BEN, None),
        )
    ]  # fmt: skip
    async with usage_at(database_url, clock) as usage:
        await usage._database.connections.write(lambda sql: sql.execute(insert(agents).values(values)))
        for _ in range(3):
            for name in ("poet", "bard", "ode", "song"):
                usage.add(BEN, name, "gpt", "", ONE)
            clock.day += 1
        ann = replace(ANN, grants=Grants(owned=frozenset({"poet", "bard", "ode"})))
        assert [row[:3] for row in await rows(usage, ("agent",), owner=ann)] == [
            (20_002, "bard", 1), (20_002, "ode", 1), (20_002, "poet", 1), (20_001, "bard", 1), (20_001, "ode", 1)
        ]  # fmt: skip
        assert await rows(usage, owner=ANN) == []  # who owns nothing


async def test_days_that_are_over_for_long_enough_are_deleted_and_zero_keeps_none(database_url: str) -> None:
    clock = Clock()
    async with usage_at(database_url, clock, usage_days=2) as usage:
        for _ in range(3):
            usage.add(ANN, "poet", "gpt", "", ONE)
            clock.day += 1
        await usage.write()
        clock.day -= 1
        await usage.remove_expired(0)
        assert [day for day, *_ in await rows(usage)] == [20_002, 20_001]
        usage.use(GatewaySettings(usage_days=0))
        await usage.remove_expired(0)
        assert (usage.is_on, await rows(usage)) == (False, [])
        assert await usage.first_day() == 20_002


async def test_hashed_names_are_in_the_database_in_place_of_names_and_find_their_own_rows(database_url: str) -> None:
    async with usage_at(database_url, audit_names="hashed", state_keys=["k" * 32]) as usage:
        usage.add(ANN, "poet", "gpt", "", ONE)
        usage.add(Caller(address="192.0.2.1"), "poet", "gpt", "", ONE)
        await usage.write()
        found = await usage._rows(text("SELECT account, caller FROM pallas_usage ORDER BY caller"))  # type: ignore[arg-type]
        assert found[0].caller == "anonymous"
        assert found[1].caller.startswith("hmac:")
        assert "ann" not in str(found)
        assert "192.0.2" not in str(found)
        other_key, no_names = {"state_keys": ["o" * 32, "k" * 32]}, {"audit_names": "hashed"}
        for settings in ({"state_keys": ["k" * 32]}, other_key, other_key | no_names):
            usage.use(GatewaySettings(**settings))
            usage.add(ANN, "poet", "gpt", "", ONE)
        assert await rows(usage, ("agent",), caller=ANN) == [(20_000, "poet", 4, {})]
        assert await rows(usage, ("agent",), caller=BEN) == []


async def test_further_rows_of_a_day_are_those_of_others(database_url: str) -> None:
    callers = [
        Caller(str(number), kind="token", authenticated=True, owner=f"token:x sub {number}") for number in range(5)
    ]
    async with usage_at(database_url, most=3) as usage, usage_at(database_url, most=3) as other:
        for number, caller in enumerate(callers):
            usage.add(caller, "poet", "gpt", "", Used(calls=number + 1))  # the last two have no room in memory
        await usage.write()
        for caller in callers[3:] + callers[:1]:
            other.add(caller, "poet", "gpt", "", Used(calls=10))  # the first two have none in the database
        _, is_complete = await other.read(7, ALL)
        assert not is_complete
        assert await rows(StoredUsage(usage._database, Clock())) == [
            (20_000, OTHERS, "poet", OTHERS, 4 + 5 + 10 + 10, {}),
            (20_000, "token:0", "poet", "gpt", 11, {}),
            (20_000, "token:1", "poet", "gpt", 2, {}),
            (20_000, "token:2", "poet", "gpt", 3, {}),
        ]


async def test_names_that_a_database_refuses_do_not_keep_others_from_being_written(database_url: str) -> None:
    odd = Caller("a\0\ud800" + "x" * 1000, kind="token", authenticated=True, owner="token:x sub a\0")
    async with usage_at(database_url) as usage:
        usage.add(odd, "poet", "gpt\0" + "y" * 10_000, "", ONE)
        [(_, caller, _, model, calls, _)] = await rows(usage)
        assert (len(caller), len(model), calls) == (200, 200, 1)
        assert await rows(usage, (), caller=odd) == [(20_000, 1, {})]


async def test_sums_of_an_outage_are_written_after_it_and_no_call_waits(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with usage_at(url) as usage:
        await usage._database.connections.write(
            lambda sql: sql.execute(text("ALTER TABLE pallas_usage RENAME TO away"))
        )
        usage.add(ANN, "poet", "gpt", "", ONE)
        with pytest.raises(DatabaseUnavailableError):
            await usage.write()
        usage.add(ANN, "poet", "gpt", "", ONE)
        await usage._database.connections.write(
            lambda sql: sql.execute(text("ALTER TABLE away RENAME TO pallas_usage"))
        )
        assert await rows(usage, ("agent",)) == [(20_000, "poet", 2, {})]


async def test_a_reader_that_leaves_does_not_have_its_sums_added_twice(database_url: str) -> None:
    async with usage_at(database_url) as usage:
        usage.add(ANN, "poet", "gpt", "", ONE)
        reading = asyncio.create_task(usage.read(7, ALL))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await rows(usage, ("agent",)) == [(20_000, "poet", 1, {})]
