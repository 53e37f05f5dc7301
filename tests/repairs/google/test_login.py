"""Gemini on Vertex AI logs in for every turn."""

import json
from pathlib import Path

import pytest

from pallas_gateway import cloud_logins
from tests.support.calling import ask
from tests.support.provider_gateways import KEY, serving
from tests.support.provider_matrix import GEMINI_VERTEX
from tests.support.scripted_llm import Reply, say


async def test_all_calls_share_one_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_logins, "_kept", {})
    async with serving(tmp_path, GEMINI_VERTEX, lambda _: say("Done.")) as served:
        answers = [await ask(served.url) for _ in range(3)]

    assert [answer.text for answer in answers] == ["Done."] * 3
    assert {request.bearer for request in served.llm.requests} == {KEY}
    assert served.llm.login_count == 1


async def test_a_refused_login_fails_the_call_and_the_next_call_logs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_logins, "_kept", {})
    refused = {"error": "invalid_grant", "error_description": f"the account of {KEY} is gone"}
    async with serving(tmp_path, GEMINI_VERTEX, lambda _: say("Done.")) as served:
        served.llm.logins.append(Reply(400, json.dumps(refused).encode(), "application/json"))
        failed, answered = await ask(served.url), await ask(served.url)

    why = ": Google's login failed: the account of"
    assert (why in failed.text, failed.meta["stop_reason"]) == (True, "llm_error"), failed.text
    assert answered.text == "Done."
