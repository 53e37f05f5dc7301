"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pallas_gateway.health import probe
from pallas_gateway.runtime import instances
from tests.support import clients

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_trust_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HTTP clients load an empty trust store: nothing here speaks TLS, and a real one costs each client 20 to 40 ms."""
    empty = tmp_path_factory.mktemp("no-certificates")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(empty))
    return empty


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long anything takes is not what is tried: everybody shares one process, and a busy machine is no failure."""
    for limit in ("ATTACH_SECONDS", "DISPOSE_SECONDS"):
        monkeypatch.setattr(instances, limit, 300)
    monkeypatch.setattr(probe, "PROBE_SECONDS", 60)
    monkeypatch.setattr(clients, "READ_SECONDS", 300)


@pytest.fixture
def deadline(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The deadline of every call: over when the test sets it, however long `call_timeout_seconds` is.

    A call that must have come somewhere before its deadline would race against the clock on a busy machine.
    """
    over = asyncio.Event()

    async def ends_within(generation: asyncio.Task[object], seconds: float) -> bool:
        waiting = asyncio.ensure_future(over.wait())
        await asyncio.wait({generation, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return generation.done()

    monkeypatch.setattr(instances, "ends_within", ends_within)
    return over
