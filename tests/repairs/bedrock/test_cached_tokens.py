"""Bedrock counts no cached tokens."""

from dataclasses import replace
from pathlib import Path

from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import BEDROCK
from tests.support.scripted_llm import LlmRequest, Turn, Usage, say


async def test_tokens_of_the_cache_are_counted_without_a_stream_too(tmp_path: Path) -> None:
    usage = Usage(prompt=30, completion=7, cached=4, written=6)

    def script(request: LlmRequest) -> Turn:
        if request.is_streamed:
            return served.llm.refuse(400, "this model does not stream with tools")
        return say("Done.", usage=usage)

    unknown_yet = replace(BEDROCK, model="bedrock.amazon.nova-micro-v1:0")  # fast-agent remembers which model streams
    async with serving(tmp_path, unknown_yet, script) as served:
        answer = await ask(served.url)

    spent = answer.meta["usage"]
    assert (answer.text, answer.is_error) == ("Done.", False)
    assert (spent["input"], spent["cache_read"], spent["cache_write"], spent["output"]) == (20, 4, 6, 7)
