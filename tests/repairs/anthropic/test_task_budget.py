"""A task budget that is not set causes a warning."""

import logging
from pathlib import Path

import pytest

from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import ANTHROPIC
from tests.support.scripted_llm import say


async def test_a_task_budget_that_is_not_set_causes_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="pallas.fast_agent")
    async with serving(tmp_path, ANTHROPIC, lambda _: say("Done.")) as served:
        assert (await ask(served.url)).text == "Done."

    assert [record.getMessage() for record in caplog.records if record.name == "pallas.fast_agent"] == []
