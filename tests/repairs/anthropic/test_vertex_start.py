"""No agent with Claude on Vertex AI starts."""

from pathlib import Path

from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import ANTHROPIC_VERTEX
from tests.support.scripted_llm import say


async def test_an_agent_with_tools_answers(tmp_path: Path) -> None:
    async with serving(tmp_path, ANTHROPIC_VERTEX, [say("Done.")]) as served:
        answer = await ask(served.url)

    assert answer.text == "Done."
    assert "tools__add" in served.llm.requests[0].tools
