"""Bedrock's errors are answers."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.calling import ask, health
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import BEDROCK
from tests.support.scripted_llm import say


async def test_an_error_does_not_take_the_tools_from_later_calls(tmp_path: Path) -> None:
    async with serving(tmp_path, BEDROCK, lambda _: served.llm.refuse(400, "Input is too long")) as served:
        answer = await ask(served.url)
        assert (answer.is_error, answer.meta["stop_reason"]) == (True, "llm_error")
        assert "Input is too long" in answer.text
        asked = len(served.llm.requests)
        served.llm.script = lambda _: say("Done.")
        assert (await ask(served.url)).text == "Done."

    assert "tools__add" in served.llm.requests[asked].tools


async def test_a_content_filter_is_no_plain_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, BEDROCK, [say("I", finish_reason="content_filter")]) as served:
        answer = await ask(served.url)

    assert answer.meta["stop_reason"] == "safety"


async def test_without_its_library_the_agent_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("fast_agent.llm.provider.bedrock.llm_bedrock"), "_boto3", None)
    async with serving(tmp_path, BEDROCK, []) as served:
        document = await health(served.url)

    assert document["status"] == "error"
    assert "boto3 is required for Bedrock" in document["message"]


async def test_a_call_without_credentials_names_the_settings(tmp_path: Path) -> None:
    environ = {**BEDROCK.environ, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    async with serving(tmp_path, replace(BEDROCK, environ=environ), []) as served:
        answer = await ask(served.url)

    why = "no AWS credentials are found (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `bedrock.profile`)"
    assert answer.text == f"The model could not answer: {BEDROCK.model}: {why}"
