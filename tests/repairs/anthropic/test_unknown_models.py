"""Each call of a model of Claude that fast-agent does not know fails."""

from dataclasses import replace
from pathlib import Path

from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import ANTHROPIC
from tests.support.scripted_llm import say


async def test_a_model_that_fast_agent_does_not_know_gets_the_documented_limit(tmp_path: Path) -> None:
    unknown = replace(ANTHROPIC, model="anthropic.claude-new-9")
    async with serving(tmp_path, unknown, [say("Done.")]) as served:
        assert (await ask(served.url)).text == "Done."
    [request] = served.llm.requests
    assert (request.model, request.body["max_tokens"]) == ("claude-new-9", 16384)
