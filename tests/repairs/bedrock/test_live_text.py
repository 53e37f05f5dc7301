"""Bedrock sends no live text."""

from pathlib import Path

from tests.support.calling import answer_of
from tests.support.provider_gateways import deltas_of, serving
from tests.support.provider_matrix import BEDROCK
from tests.support.scripted_llm import LlmRequest, Turn, call_tools, say


async def test_live_text_before_a_tool_call_keeps_its_order(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> Turn:
        if request.tool_results:
            return say("It is 3.")
        return call_tools([("tools__add", {"a": 1, "b": 2})], text="Let me see. ")

    async with serving(tmp_path, BEDROCK, script) as served, served.in_flight() as call:
        answer = answer_of(await call.reply())

    assert answer.text == "It is 3."
    assert "".join(deltas_of(call)) == "Let me see. It is 3."
