"""OpenAI's models refuse parameters that fast-agent sends."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.calling import ask
from tests.support.provider_gateways import Provider, serving
from tests.support.provider_matrix import GENERIC, OPENAI, RESPONSES
from tests.support.scripted_llm import say

SAMPLING = ("temperature", "top_p", "stop")
REASONING = [
    replace(OPENAI, model="openai.gpt-5.4"),
    replace(OPENAI, model="openai.gpt-5.4?reasoning=none"),
    replace(RESPONSES, model="responses.gpt-5.4"),
]


@pytest.mark.parametrize("provider", REASONING, ids=lambda one: one.model)
async def test_a_model_gets_sampling_parameters_only_where_it_does_not_reason(
    provider: Provider, tmp_path: Path
) -> None:
    params = "temperature=0.2, top_p=0.5, stop_sequences=['end']"
    async with serving(tmp_path, provider, [say("Done.")], params=params) as served:
        assert (await ask(served.url)).text == "Done."

    (request,) = served.llm.requests
    sent = {name for name in SAMPLING if name in request.body}
    assert sent == ({"temperature", "top_p"} if provider.model.endswith("reasoning=none") else set())


async def test_a_call_without_tools_sends_no_empty_list_of_them(tmp_path: Path) -> None:
    async with serving(tmp_path, GENERIC, [say("Done.")], servers=()) as served:
        await ask(served.url)

    assert "tools" not in served.llm.requests[0].body
