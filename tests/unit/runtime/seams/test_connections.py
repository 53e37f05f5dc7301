"""HTTP clients of connections to downstreams."""

from collections.abc import Collection
from typing import Any

import httpx2
import pytest
from fast_agent.mcp import client_gateway

from pallas_gateway.calls.asking.asking import CANNOT_ASK, Asker, AskRules, Questions
from pallas_gateway.calls.questions import Answer, Mode, Question
from pallas_gateway.runtime.downstreams.connections.answers import (
    LIMITING,
    allow_silence,
    ask_for_gzip,
    client_of_sse,
    name_refusal,
)
from pallas_gateway.runtime.scope import CallScope, entered
from pallas_gateway.runtime.seams.connections import http_diagnostic_hooks, sse_client


class Person:
    modes: Collection[Mode] = ["form"]
    client_may_leave = False

    async def put(self, question: Question) -> Answer:
        del question
        return Answer("declined")


@pytest.mark.parametrize(("asker", "longer"), [(Person(), 60), (CANNOT_ASK, 0)])
async def test_http_may_be_silent_for_as_long_as_a_question_is_open(asker: Asker, longer: int) -> None:
    streams: list[dict[str, Any]] = []
    connect = sse_client(lambda *_, **options: streams.append(options), client_gateway)
    hooks = http_diagnostic_hooks(lambda *_: {"request": ["first"], "response": ["last"]}, client_gateway)
    with entered(CallScope(questions=Questions("user", asker, AskRules(seconds=60)))):
        assert hooks("notes") == {
            "request": ["first", allow_silence, ask_for_gzip],
            "response": [LIMITING, name_refusal, "last"],
        }
        connect("http://a.example", None, sse_read_timeout=300, auth=None)
        for read in (5, None):
            timeout = httpx2.Timeout(1, read=read).as_dict()
            request = httpx2.Request("POST", "http://a.example", extensions={"timeout": timeout})
            await allow_silence(request)
            assert request.extensions["timeout"] == {**timeout, "read": read and read + longer}
    factory = {"httpx_client_factory": client_of_sse}
    assert streams == [{"sse_read_timeout": 300 + longer, "auth": None, **factory}]
