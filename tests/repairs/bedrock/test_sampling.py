"""Bedrock samples otherwise than asked."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.parameters import AS_SCHEMA, notes_of, result_of
from tests.support.provider_gateways import Provider, serving
from tests.support.provider_matrix import BEDROCK
from tests.support.scripted_llm import say

NOVA = replace(BEDROCK, model="bedrock.amazon.nova-pro-v1:0")
SONNET = replace(BEDROCK, model="bedrock.us.anthropic.claude-sonnet-4-5-20250929-v1:0")


@pytest.mark.parametrize("provider", [NOVA, SONNET], ids=lambda one: one.model)
async def test_bedrock_samples_as_asked(provider: Provider, tmp_path: Path) -> None:
    async with serving(tmp_path, provider, lambda _: say('{"name": "Ann"}')) as served:
        assert notes_of(await result_of(served, temperature=0.25, response_format=AS_SCHEMA)) == {}
        assert notes_of(await result_of(served, response_format=AS_SCHEMA)) == {}
        assert notes_of(await result_of(served, top_p=0.75)) == {}
        both = notes_of(await result_of(served, temperature=0.25, top_p=0.75))

    bodies = [request.body for request in served.llm.requests]
    sampling = [{**one["inferenceConfig"], "maxTokens": 0} for one in bodies]
    assert [one.get("temperature") for one in sampling] == [0.25, 0.0, None, 0.25]
    assert [one.get("topP") for one in sampling[2:]] == ([0.75, 0.75] if provider is NOVA else [0.75, None])
    assert both == ({} if provider is NOVA else {"ignored": ["top_p"]})
    assert ["additionalModelRequestFields" in one for one in (bodies[0], *bodies[2:])] == [False] * 3
