"""The event loop while agents ask models behind slow servers, over every provider; `loop_lag` is what is run."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest
from fast_agent.llm.provider_types import Provider

from pallas_gateway.runtime import patches
from pallas_gateway.runtime.settings.model_names import provider_of
from tests.e2e.provider_matrix import OPENROUTER
from tests.e2e.providers import serving
from tests.support.calling import ask
from tests.support.listener import black_hole
from tests.support.scripted_llm import say

if TYPE_CHECKING:
    from pathlib import Path

MOST_IN_A_CALL = 10.0
"""Times the reference, which is 5 ms: the event loop is blocked for 50 ms at most."""
MOST_AT_START = 40.0
"""Without the libraries, which take up to 0.5 s each and are imported in a thread."""


@pytest.mark.crowd
async def test_no_provider_blocks_the_event_loop(tmp_path: Path) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.e2e.loop_lag", str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await program.communicate()
    assert program.returncode == 0
    ratios = json.loads(printed)
    limits = {"start": MOST_AT_START}
    assert {name: one for name, one in ratios.items() if one > limits.get(name, MOST_IN_A_CALL)} == {}
    assert len(ratios) > len(list(Provider))  # a first and a second call of nearly each


async def test_aws_is_not_asked_about_a_model_of_another_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHETESTS000000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-key")
    monkeypatch.setenv("BEDROCK_REGION", "eu-west-1")
    with black_hole() as silent:  # it would block the event loop until boto3 gives up
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK", silent)
        async with serving(tmp_path, OPENROUTER, [say("Hello.")]) as served:
            answer = await ask(served.url)

    assert answer.text == "Hello."


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("amazon.nova-lite-v1:0", Provider.BEDROCK),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", Provider.BEDROCK),
        ("mistral.mistral-7b-instruct-v0:2", Provider.BEDROCK),
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", Provider.ANTHROPIC),
        ("openai.gpt-oss-120b-1:0", Provider.OPENAI),
        ("amazon.nova-lite", None),
        ("vendor/unheard-of:1", None),
        ("nobodys-model", None),
    ],
)
def test_a_model_of_bedrock_without_its_provider_is_known_by_its_form(name: str, provider: Provider | None) -> None:
    patches.prepare()
    assert provider_of(name) is provider
