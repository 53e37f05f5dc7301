"""The times in the registry: set by the first process that loads a configuration, known to all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pallas_gateway.database.errors import DatabaseUnavailableError
from pallas_gateway.hosting.publication import KnownLoadTimes, Publication, digest_of, published
from tests.support.memory_hosting import StoredAgent, configuration, with_stored

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_the_first_process_sets_the_time_of_a_configuration(tmp_path: Path) -> None:
    times, loaded = KnownLoadTimes(), configuration(tmp_path, {"a": {}}, {})
    first = await published(loaded, times, Publication())
    second = await published(loaded, times, Publication())
    assert first == second
    assert datetime.now(UTC) - first.at < timedelta(minutes=1)


async def test_a_configuration_that_comes_back_is_new_once(tmp_path: Path) -> None:
    times = KnownLoadTimes()
    one, other = configuration(tmp_path, {"a": {}}, {}), configuration(tmp_path, {"a": {}, "b": {}}, {})
    first = await published(one, times, Publication())
    second = await published(other, times, first)
    back = await published(one, times, second)
    assert first.at < second.at < back.at
    assert await published(one, times, second) == back  # at another process
    assert await published(one, times, back) == back  # a reload without a change


async def test_agents_of_the_database_and_secrets_do_not_count(tmp_path: Path) -> None:
    files = configuration(tmp_path, {"a": {}}, {})
    assert digest_of(with_stored(files, [StoredAgent("b")])) == digest_of(files)
    with_secrets = configuration(tmp_path, {"a": {}}, {"state_keys": ["k" * 32], "database": "sqlite:///a.db"})
    assert digest_of(with_secrets) == digest_of(files)
    assert digest_of(configuration(tmp_path, {"a": {"title": "A"}}, {})) != digest_of(files)


class AwayTimes:
    async def first(self, digest: str, after: datetime | None) -> datetime:
        raise DatabaseUnavailableError


async def test_without_the_database_a_process_uses_its_own_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = await published(configuration(tmp_path, {"a": {}}, {}), AwayTimes(), Publication())
    assert not own.is_shared
    assert [record.message for record in caplog.records] == ["load time not shared"]
    assert replace(own, is_shared=True).at.tzinfo is UTC
