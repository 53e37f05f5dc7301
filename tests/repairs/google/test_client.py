"""Google's client sleeps when a connection is refused."""

import asyncio
from dataclasses import replace
from pathlib import Path

from tests.support.calling import ask
from tests.support.listener import reserved_port
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import GEMINI

SOON_SECONDS = 5.0
"""Less than the library sleeps: once for each of three requests with a stream, and of three without."""


async def test_a_refused_connection_is_reported_soon(tmp_path: Path) -> None:
    with reserved_port() as port:
        closed = replace(GEMINI, config={**GEMINI.config, "base_url": f"http://127.0.0.1:{port}"})
        async with serving(tmp_path, closed, []) as served, asyncio.timeout(SOON_SECONDS):
            answer = await ask(served.url)

    assert answer.text.endswith("its provider cannot be reached: connection refused")
