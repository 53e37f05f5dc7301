"""A request whose answer is to another one waits until its deadline."""

from pathlib import Path

import pytest

from pallas_gateway.repairs.mcp.unanswered_requests import UNANSWERED
from tests.support.calling import ask
from tests.support.odd_server import hostile, notice, odd_server
from tests.support.one_user import use, world


@pytest.mark.parametrize(
    "answer",
    [
        {"id": 77, "result": {"content": []}},
        {"id": 77, "error": {"code": 1, "message": "no"}},
        notice("notifications/x"),
    ],
    ids=["result", "error", "notification"],
)
async def test_a_request_that_is_not_answered_fails_at_once(answer: object, tmp_path: Path) -> None:
    documents = hostile("initialize")
    documents["tools/call"] = (200, answer)
    with odd_server(documents) as server:
        async with world(tmp_path, use(("odd__book", {})), odd=f"{server.url}/mcp") as it:
            answered = await ask(it.url)
            [result] = it.tool_results()

    assert answered.text == "done"
    assert UNANSWERED in result
