"""Claude is sent null for the stop sequences."""

from pathlib import Path

from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import ANTHROPIC
from tests.support.scripted_llm import say


async def test_a_request_without_stop_sequences_has_no_field_for_them(tmp_path: Path) -> None:
    async with serving(tmp_path, ANTHROPIC, [say("Done.")]) as served:
        assert (await ask(served.url)).text == "Done."
    [request] = served.llm.requests
    assert "stop_sequences" not in request.body
