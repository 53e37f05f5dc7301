"""Claude is sent null for the stop sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import ANTHROPIC
from tests.support.scripted_llm import say

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_request_without_stop_sequences_has_no_field_for_them(tmp_path: Path) -> None:
    async with serving(tmp_path, ANTHROPIC, [say("Done.")]) as served:
        assert (await ask(served.url)).text == "Done."
    [request] = served.llm.requests
    assert "stop_sequences" not in request.body
