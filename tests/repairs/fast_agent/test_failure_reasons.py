"""Reasons hold addresses, Python and statistics."""

from pathlib import Path

import pytest
from fast_agent.llm.provider.error_utils import build_stream_failure_response

from pallas_gateway.repairs.fast_agent import failure_reasons
from tests.support.calling import answer_of
from tests.support.provider_gateways import Provider, serving
from tests.support.provider_matrix import ANTHROPIC, GENERIC
from tests.support.scripted_llm import error_event


@pytest.mark.parametrize("provider", [GENERIC, ANTHROPIC], ids=str)
async def test_a_failed_turn_says_the_reason_in_the_assistants_turns_too(provider: Provider, tmp_path: Path) -> None:
    script = [error_event("overloaded", pieces=())]
    async with serving(tmp_path, provider, script) as served, served.in_flight() as call:
        reason = answer_of(await call.reply()).text

    assert reason == f"The model could not answer: {provider.model}: its provider reported: overloaded"
    messages = [one["params"]["data"] for one in call.notifications if one["method"] == "notifications/message"]
    assert {data["text"] for data in messages if data["kind"] == "assistant_chunk"} == {reason}


def test_what_is_explained_is_not_explained_again() -> None:
    explained = failure_reasons.changed(build_stream_failure_response, None)
    assert failure_reasons.changed(explained, None) is explained
