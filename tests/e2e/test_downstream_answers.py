"""What HTTP downstreams answer when they should not: bodies without measure, and refusals without words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.answering_calls import CallAnswer, answering_calls
from tests.support.calling import ask
from tests.support.downstreams import Era, stateless_downstream
from tests.support.gateway import Limits
from tests.support.odd_server import Raw, hostile, odd_server
from tests.support.one_user import ADD, use, world
from tests.support.pairs import pairs

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


SEAT = {"type": "object", "properties": {"seat": {"type": "integer"}}, "required": ["seat"]}
BOOKED = {"type": "text", "text": "Booked for Ada."}
MISFIT = "The tool ran; its result does not fit the schema that it declares."


@pytest.mark.parametrize("era", ["initialize", "modern"])
async def test_a_tool_whose_result_does_not_fit_its_schema_has_not_failed(
    era: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    documents = hostile(era, outputSchema=SEAT)
    results: list[tuple[dict[str, Any], str]] = [
        ({"content": [BOOKED], "structuredContent": {"seat": 5}}, '{"seat":5}'),
        ({"content": [BOOKED], "structuredContent": {"seat": None}}, f'Booked for Ada. {{"seat": null}} {MISFIT}'),
        (
            {"content": [{"type": "text", "text": '{"seat": "5"}'}], "structuredContent": {"seat": "5"}},
            f'{{"seat": "5"}} {MISFIT}',
        ),
        ({"content": [BOOKED]}, f"Booked for Ada. {MISFIT}"),
        ({"content": [BOOKED], "structuredContent": {"seat": None}, "isError": True}, 'Booked for Ada. {"seat": null}'),
        (
            {"content": [{"type": "video"}]},
            "The tool ran; its answer cannot be read (content[0]: unknown type 'video').",
        ),
    ]
    read: list[str] = []
    asked: list[list[str]] = []
    with odd_server(documents) as server:
        async with world(tmp_path, use(("odd__book", {})), odd=f"{server.url}/mcp") as it:
            for result, _ in results:
                documents["tools/call"] = (200, {"result": {"resultType": "complete", **result}})
                await ask(it.url)
                read += it.tool_results()
                asked.append([rpc.get("method") for _, _, rpc in server.seen])

    assert read == [expected for _, expected in results]
    assert asked[-1].count("tools/call") == len(results)
    assert asked[-1].count("tools/list") == asked[0].count("tools/list") + 1  # after the first that does not fit
    warned = [vars(one) for one in caplog.records if one.message == "tool result does not fit its schema"]
    assert [(one["server"], one["tool"], one["error"]) for one in warned] == [("odd", "book", "$.seat: type")]


@pytest.mark.parametrize("era", ["initialize", "modern"])
async def test_a_list_of_tools_that_never_comes_costs_no_result(
    era: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pallas_gateway.runtime.downstreams.result_checks.PAGES_SECONDS", 0.05)
    documents = hostile(era, outputSchema=SEAT)
    with odd_server(documents) as server:
        async with world(tmp_path, use(("odd__book", {})), odd=f"{server.url}/mcp") as it:
            for result in ({"structuredContent": {"seat": 5}}, {}):
                documents["tools/call"] = (200, {"result": {"resultType": "complete", "content": [BOOKED], **result}})
                await ask(it.url)
                documents["tools/list"] = (200, Raw(content_type="text/event-stream", pings=True))
            assert it.tool_results() == [f"Booked for Ada. {MISFIT}"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"seat": {"$ref": "#/$defs/none"}}},
        {"type": "object", "properties": {"seat": {"pattern": "["}}},
    ],
    ids=["unresolvable", "pattern"],
)
async def test_a_schema_that_cannot_be_used_costs_no_result(schema: object, tmp_path: Path) -> None:
    documents = hostile("modern", outputSchema=schema)
    result = {"resultType": "complete", "content": [BOOKED], "structuredContent": {"seat": "5"}}
    documents["tools/call"] = (200, {"result": result})
    with odd_server(documents) as server:
        async with world(tmp_path, use(("odd__book", {})), odd=f"{server.url}/mcp") as it:
            await ask(it.url)
            assert it.tool_results() == ['{"seat":"5"}']


async def test_the_line_of_a_call_names_the_tools_that_failed_and_the_kinds_of_their_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="pallas")
    failing = ("tools__fail", {"message": "no such record"})
    async with stateless_downstream() as tools, world(tmp_path, use(failing, ADD), tools=tools.url) as it:
        await ask(it.url)
        answering_calls(tools, CallAnswer(503, b'{"error": "stopping"}'))
        await ask(it.url)

    lines = [vars(one) for one in caplog.records if one.name == "pallas.calls"]
    assert [one["tools_failed"] for one in lines] == [
        {"tools/fail (tool_error)": 1},
        {"tools/fail (http_503)": 1, "tools/add (http_503)": 1},
    ]
    words = [(one.levelname, vars(one)["error"]) for one in caplog.records if one.message == "tool call failed"]
    assert ("DEBUG", "no such record") in words
    assert len(words) == 3
