"""What HTTP downstreams answer when they should not: bodies without measure, and refusals without words."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from tests.support.answering_calls import CallAnswer, answering_calls
from tests.support.calling import ask
from tests.support.downstreams import refusing, stateless_downstream
from tests.support.one_user import ADD, use, world
from tests.support.pairs import pairs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.downstreams import Era
    from tests.support.gateway import Limits

LARGE = b'{"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "' + bytes(2**26) + b'"}]}}'
BOMB = gzip.compress(LARGE)


@pytest.fixture(autouse=True)
def a_busy_machine_may_be_slow_to_list_tools(limits: Limits) -> None:
    limits.runtime.attach_seconds = limits.runtime.listings.ask_seconds = 20


@pytest.mark.parametrize("era", ["initialize", "modern"])
@pytest.mark.parametrize(
    ("body", "encodings", "reason"),
    [
        (BOMB, "gzip", "its answer is larger than 64 MiB"),
        (gzip.compress(gzip.compress(BOMB)), "gzip, gzip, gzip", "the encoding 'gzip, gzip, gzip', not gzip"),
    ],
    ids=["once", "three times"],
)
async def test_an_answer_that_grows_beyond_the_limit_is_a_tool_error_with_the_reason(
    body: bytes, encodings: str, reason: str, era: Era, tmp_path: Path
) -> None:
    async with stateless_downstream(era=era) as tools, world(tmp_path, use(ADD), tools=tools.url) as it:
        accepted = answering_calls(tools, CallAnswer(200, body, {"Content-Encoding": encodings}))
        answer = await ask(it.url)
        [result] = it.tool_results()

    assert (answer.text, set(accepted)) == ("done", {"gzip"})
    assert reason in result


@pytest.mark.parametrize("era", ["initialize", "modern"])
async def test_an_event_may_be_larger_than_the_limit_of_the_mcp_library(era: Era, tmp_path: Path) -> None:
    result = {
        "resultType": "complete",
        "content": [],
        "structuredContent": {"result": 3},
        "_meta": {"tools/rest": "0" * 1_500_000},
    }
    event = f"event: message\ndata: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': result})}\n\n".encode()
    async with stateless_downstream(era=era) as tools, world(tmp_path, use(ADD), tools=tools.url) as it:
        answering_calls(tools, CallAnswer(200, event, {"content-type": "text/event-stream"}))
        await ask(it.url)

    assert [json.loads(one) for one in it.tool_results()] == [{"result": 3}]


@pairs(
    {
        "refusal, reason": [
            (
                CallAnswer(401, headers={"WWW-Authenticate": 'Bearer error_description="expired"'}),
                "HTTP 401 Unauthorized: expired",
            ),
            (CallAnswer(403, b'{"error": "no such right"}'), "HTTP 403 Forbidden: no such right"),
            (
                CallAnswer(429, b'{"detail": "slow down"}', {"Retry-After": "7"}),
                "HTTP 429 Too Many Requests: slow down (try again in 7 s)",
            ),
            (CallAnswer(500, b"<html>traceback</html>"), "HTTP 500 Internal Server Error"),
            (CallAnswer(503, b'{"error": {"message": "stopping"}}'), "HTTP 503 Service Unavailable: stopping"),
            (
                CallAnswer(502, b'{"jsonrpc": "2.0", "id": 1, "error": {"message": "no code"}}'),
                "HTTP 502 Bad Gateway: no code",
            ),
            (CallAnswer(500, b'{"error": "\\u001b]0;a\\u0007b\\u202e"}'), "HTTP 500 Internal Server Error: ]0;a b"),
        ],
        "era": ["initialize", "modern"],
    }
)
async def test_a_refused_tool_call_tells_the_model_the_status_and_the_reason(
    refusal: CallAnswer, reason: str, era: Era, tmp_path: Path
) -> None:
    async with stateless_downstream(era=era) as tools, world(tmp_path, use(ADD), tools=tools.url) as it:
        answering_calls(tools, refusal)
        await ask(it.url)
        [result] = it.tool_results()

    assert reason in result
    assert "traceback" not in result


async def test_a_refused_connection_is_logged_with_the_status_and_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with refusing(503) as server, world(tmp_path, use(ADD), tools=server.url) as it:
        await ask(it.url)

    down = [record for record in caplog.records if record.getMessage() == "downstream unreachable"]
    assert [getattr(record, "error", "") for record in down] == ["HTTP 503 Service Unavailable: always 503"]
