"""The event loop while agents ask models behind slow servers, over every provider; `loop_lag` is what is run."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from fast_agent.llm.provider_types import Provider

MOST_IN_A_CALL = 10.0
"""Times the reference, which is 5 ms: the event loop is blocked for 50 ms at most."""
MOST_AT_START = 40.0
"""Without the libraries, which take up to 0.5 s each and are imported in a thread."""


@pytest.mark.whole("e2e/test_providers.py::test_the_gateway_answers_others_while_a_model_is_silent")
@pytest.mark.crowd
async def test_no_provider_blocks_the_event_loop(tmp_path: Path) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.e2e.loop_lag", str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await program.communicate()
    assert program.returncode == 0
    ratios = json.loads(printed)
    limits = {"start": MOST_AT_START}
    assert {name: one for name, one in ratios.items() if one > limits.get(name, MOST_IN_A_CALL)} == {}
    assert len(ratios) > len(list(Provider))  # a first and a second call of nearly each
