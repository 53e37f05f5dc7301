"""When configurations were loaded first, in each kind of database."""

from __future__ import annotations

import asyncio

from pallas_gateway.hosting.stored_load_times import StoredLoadTimes
from tests.support.stored_threads import services


async def test_all_processes_read_the_time_of_the_first(database_url: str) -> None:
    async with services(database_url) as one, services(database_url) as other:
        times = [StoredLoadTimes(one.database), StoredLoadTimes(other.database)]
        found = await asyncio.gather(*(each.first("digest", None) for each in times * 5))
        assert len(set(found)) == 1
        assert await times[0].first("another", None) >= found[0]


async def test_a_configuration_that_comes_back_has_a_new_time_at_all_processes(database_url: str) -> None:
    async with services(database_url) as one, services(database_url) as other:
        times = [StoredLoadTimes(one.database), StoredLoadTimes(other.database)]
        first = await times[0].first("digest", None)
        second = await times[0].first("another", first)
        back = await asyncio.gather(*(each.first("digest", second) for each in times))
        assert back[0] == back[1] >= second
        assert await times[1].first("digest", None) == back[0]
