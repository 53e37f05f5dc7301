"""The Responses API opens a WebSocket for each call."""

from pathlib import Path

from pallas_gateway.limits import LlmLimits
from tests.support.calling import ask
from tests.support.gateway import limited
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import RESPONSES
from tests.support.scripted_llm import say


async def test_server_sent_events_are_used_where_nothing_is_chosen_over_one_connection(tmp_path: Path) -> None:
    with limited() as limits:
        limits.runtime.llm = LlmLimits(keep_alive_seconds=60)
        async with serving(tmp_path, RESPONSES, lambda _: say("Done.")) as served:
            for _ in range(3):
                assert (await ask(served.url)).text == "Done."

    assert {request.body.get("type") for request in served.llm.requests} == {None}
    assert len(set(served.llm.sockets)) == 1
