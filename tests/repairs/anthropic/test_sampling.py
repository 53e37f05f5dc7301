"""Newer models of Claude refuse `temperature` with `top_p`."""

from dataclasses import replace
from pathlib import Path

import pytest

from pallas_gateway.repairs.anthropic._models import takes_one_of_two
from tests.support.parameters import notes_of, result_of
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import ANTHROPIC
from tests.support.providers.anthropic import strict


async def test_claude_gets_either_temperature_or_top_p(tmp_path: Path) -> None:
    provider = replace(ANTHROPIC, model="anthropic.claude-opus-4-1")
    async with serving(tmp_path, provider, lambda request: strict(served, request)) as served:
        assert notes_of(await result_of(served, temperature=0.25, top_p=0.75))["ignored"] == ["top_p"]
        assert "ignored" not in notes_of(await result_of(served, top_p=0.75))


@pytest.mark.parametrize(
    ("models", "is_either"),
    [
        ("claude-3-5-haiku-20241022 claude-v2 claude-sonnet-4 claude-sonnet-4-0 claude-opus-4-20250514", False),
        ("anthropic.claude-sonnet-4-20250514-v1:0 claude-sonnet-4@20250514 amazon.nova-lite-v1:0", False),
        ("claude-opus-4-1 claude-opus-4.1 claude-opus-4-1-20250805 claude-opus-4-1@20250805 claude-haiku-4-5", True),
        ("claude-sonnet-4-6 claude-opus-5 us.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
    ],
)
def test_models_of_claude_take_temperature_or_top_p_since_opus_4_1(models: str, is_either: bool) -> None:
    assert {takes_one_of_two(model) for model in models.split()} == {is_either}
