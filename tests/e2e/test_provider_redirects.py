"""Answers that redirect a request to another server: neither key nor conversation goes there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import ANTHROPIC, AZURE, GEMINI, GENERIC, RESPONSES
from tests.support.providers.provider import scripted_provider
from tests.support.scripted_llm import Reply, say

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.provider_gateways import Provider


def redirect(location: str) -> Reply:
    return Reply(307, b"", "text/plain", {"location": location})


@pytest.mark.parametrize("provider", [GENERIC, AZURE, RESPONSES, ANTHROPIC, GEMINI], ids=str)
async def test_no_request_goes_to_a_server_that_an_answer_names(tmp_path: Path, provider: Provider) -> None:
    async with (
        scripted_provider(provider.dialect) as elsewhere,
        serving(tmp_path, provider, lambda request: redirect(f"{elsewhere.base_url}{request.path}")) as served,
    ):
        answer = await ask(served.url)

    assert "its provider answered 307 (check its address: the answer redirects to another one" in answer.text
    assert (elsewhere.requests, len(served.llm.requests)) == ([], 1)


async def test_a_request_follows_its_own_server(tmp_path: Path) -> None:
    async with serving(tmp_path, GENERIC, [redirect("/v1/moved/chat/completions"), say("Hello.")]) as served:
        answer = await ask(served.url)

    assert answer.text == "Hello."
    assert [one.path for one in served.llm.requests] == ["/v1/chat/completions", "/v1/moved/chat/completions"]
