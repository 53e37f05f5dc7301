"""Settings with which no request can be sent: the reason names the setting."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pallas_gateway.calls.provider_failures import NO_HEADER, NO_URL
from tests.support.calling import ask
from tests.support.provider_gateways import KEY, serving
from tests.support.provider_matrix import (
    ANTHROPIC,
    GEMINI,
    GENERIC,
    RESPONSES,
)
from tests.support.scripted_llm import say

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.provider_gateways import Provider

UNSENDABLE: Mapping[str, tuple[Mapping[str, str], str]] = {
    "line break": ({"api_key": f"{KEY}\n4711"}, NO_HEADER),
    "letter": ({"api_key": f"ü{KEY}"}, NO_HEADER),
    "no scheme": ({"base_url": "localhost:8000/v1"}, NO_URL),
}


@pytest.mark.parametrize(
    "provider", [GENERIC, pytest.param(RESPONSES, marks=pytest.mark.whole), ANTHROPIC, GEMINI], ids=str
)
async def test_a_request_that_cannot_be_sent_names_the_setting(provider: Provider, tmp_path: Path) -> None:
    reasons = {}
    for name, (setting, _) in UNSENDABLE.items():
        wrong = replace(provider, config={**provider.config, **setting})
        async with serving(tmp_path / name, wrong, lambda _: say("Done.")) as served:
            reasons[name] = (await ask(served.url)).text

    expected = {name: f"The model could not answer: {provider.model}: {why}" for name, (_, why) in UNSENDABLE.items()}
    if provider is ANTHROPIC:
        expected["letter"] = "Done."  # its library sends UTF-8
    assert reasons == expected
