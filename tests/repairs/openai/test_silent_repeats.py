"""Libraries repeat requests without a log."""

from pathlib import Path

import pytest

from tests.support.calling import ask
from tests.support.provider_gateways import Provider, serving
from tests.support.provider_matrix import ANTHROPIC, GENERIC
from tests.support.scripted_llm import say


@pytest.mark.parametrize("provider", [GENERIC, ANTHROPIC], ids=str)
async def test_a_request_that_a_library_repeats_is_in_the_log(
    provider: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, provider, []) as served:
        served.llm.restart([served.llm.refuse(429, retry_after="0.01"), say("Done.")])
        assert (await ask(served.url)).text == "Done."

    (record,) = [record for record in caplog.records if record.message == "LLM request repeated"]
    assert vars(record)["error"] == "status 429"
