"""Time-outs of requests to downstreams while the caller can be asked; tests/e2e/test_questions.py has the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from fast_agent.mcp import client_gateway
from fast_agent.mcp.client_gateway import MCPClientHooks

from pallas_gateway.calls.asking import CANNOT_ASK, AskRules, Questions
from pallas_gateway.calls.questions import Answer, Question
from pallas_gateway.runtime.downstreams.timeouts import _lengthen_silences, allow_silence
from pallas_gateway.runtime.scope import CallScope, entered

if TYPE_CHECKING:
    from collections.abc import Collection

    from pallas_gateway.calls.asking import Asker
    from pallas_gateway.calls.questions import Mode


class Person:
    """A caller that can be asked."""

    modes: Collection[Mode] = ["form"]

    async def put(self, question: Question) -> Answer:
        """Decline."""
        del question
        return Answer("declined")


@pytest.mark.parametrize(("asker", "longer"), [(Person(), 60), (CANNOT_ASK, 0)])
async def test_http_may_be_silent_for_as_long_as_a_question_is_open(
    asker: Asker, longer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[dict[str, Any]] = []
    monkeypatch.setattr(client_gateway, "sse_client", lambda *_, **options: streams.append(options))
    monkeypatch.setattr(client_gateway, "_http_diagnostic_hooks", lambda *_, **__: None)
    _lengthen_silences()
    with entered(CallScope(questions=Questions("user", asker, AskRules(seconds=60)))):
        assert client_gateway._http_diagnostic_hooks("notes", MCPClientHooks()) == {"request": [allow_silence]}
        client_gateway.sse_client("http://a.example", None, sse_read_timeout=300, auth=None)  # type: ignore[attr-defined]
        for read in (5, None):
            timeout = httpx2.Timeout(1, read=read).as_dict()
            request = httpx2.Request("POST", "http://a.example", extensions={"timeout": timeout})
            await allow_silence(request)
            assert request.extensions["timeout"] == {**timeout, "read": read and read + longer}
    assert streams == [{"sse_read_timeout": 300 + longer, "auth": None}]
