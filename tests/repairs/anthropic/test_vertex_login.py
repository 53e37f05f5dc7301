"""Claude on Vertex AI logs in for every turn."""

from pathlib import Path

import pytest

from pallas_gateway import cloud_logins
from tests.support.calling import ask
from tests.support.provider_gateways import KEY, serving
from tests.support.provider_matrix import ANTHROPIC_VERTEX
from tests.support.scripted_llm import say


async def test_all_calls_share_one_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_logins, "_kept", {})
    async with serving(tmp_path, ANTHROPIC_VERTEX, lambda _: say("Done.")) as served:
        answers = [await ask(served.url) for _ in range(3)]

    assert [answer.text for answer in answers] == ["Done."] * 3
    assert {request.bearer for request in served.llm.requests} == {KEY}
    assert served.llm.login_count == 1
