"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio

from pallas_gateway.telemetry import redaction
from tests.support.gateway import Limits, limited
from tests.support.provider_gateways import Served, serving_all


@pytest.fixture(autouse=True)
def no_secrets_known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway knows the secrets that it has found itself, and none of the gateway of an earlier test."""
    if "shared" not in request.fixturenames:  # that gateway was started before
        monkeypatch.setattr(redaction, "configured", redaction.KnownSecrets())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    """A gateway over one provider for all tests of a module, which runs in one event loop (`provider_matrix`)."""
    with limited() as limits:
        _keep_sockets(limits)
        async with serving_all(tmp_path_factory.mktemp("shared") / "project", request.param) as served:
            yield served


@pytest.fixture
def limits() -> Iterator[Limits]:
    """Limits of the gateways that the test serves."""
    with limited() as limits:
        yield limits


@pytest.fixture
def brief_sockets(limits: Limits) -> None:
    """Idle sockets close at once: a test that looks for what is left does not wait for them."""
    limits.runtime.llm = replace(limits.runtime.llm, keep_alive_seconds=0.1)
    limits.runtime.listings.keep_alive_seconds = 0.1


@pytest.fixture
def lasting_sockets(limits: Limits) -> None:
    """Idle sockets to LLMs stay open: a test that counts them does not race against the clock."""
    _keep_sockets(limits)


def _keep_sockets(limits: Limits) -> None:
    limits.runtime.llm = replace(limits.runtime.llm, keep_alive_seconds=60)


@pytest.fixture
def patience(limits: Limits) -> None:
    """Durations are not what is tested: client and gateway share a process, and a busy machine is no failure."""
    limits.runtime.attach_seconds = limits.runtime.dispose_seconds = 300
    limits.gateway.health.probe_seconds = 60


@pytest.fixture
def deadline(limits: Limits) -> asyncio.Event:
    """The deadline of every call: over when the test sets it, however long `call_timeout_seconds` is.

    A call that must have come somewhere before its deadline would race against the clock on a busy machine.
    """
    over = asyncio.Event()

    async def ends_within(generation: asyncio.Task[object], seconds: float, during: object) -> bool:
        waiting = asyncio.ensure_future(over.wait())
        await asyncio.wait({generation, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return generation.done()

    limits.runtime.ends_within = ends_within
    return over
