"""Copilot looks for its token in the keyring."""

from pathlib import Path

from pallas_gateway.repairs.logins._file import FILE
from tests.support.calling import ask
from tests.support.provider_gateways import Provider, serving
from tests.support.provider_matrix import RESPONSES

COPILOT = Provider("copilot", "copilot.gpt-6-astra", RESPONSES.dialect)


async def test_an_agent_without_a_token_does_not_start(tmp_path: Path) -> None:
    async with serving(tmp_path, COPILOT, []) as served:
        answer = await ask(served.url)

    assert (answer.is_error, answer.meta["stop_reason"]) == (True, "agent_unavailable")
    assert "fast-agent auth provider login copilot" in answer.text
    assert FILE in answer.text
