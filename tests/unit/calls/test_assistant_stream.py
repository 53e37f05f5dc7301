"""Events as payloads of the assistant stream, field by field."""

import pytest

from pallas_gateway.calls.assistant_stream import LONGEST_RESULT, Payload, payload_of
from pallas_gateway.calls.events.events import (
    Admitted,
    Emitter,
    Event,
    FromPeer,
    QuestionAsked,
    QuestionClosed,
    StepBegan,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolsEnded,
    TurnEnded,
)
from pallas_gateway.calls.questions import Question

HARPER = Emitter("harper", "c-1")
HEAD = {"schema_version": 2, "agent": "harper", "conversation_id": "c-1", "iteration": 1}
ADD = ToolCall("t-1", "tools", "add", {"a": 1})
LISTED = {"id": "t-1", "server": "tools", "name": "add"}


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        (TextDelta(HARPER, 1, "It"), {"kind": "assistant_delta", **HEAD, "text": "It"}),
        (
            TurnEnded(HARPER, 1, "It is", [ADD], "toolUse"),
            {
                "kind": "assistant_chunk",
                **HEAD,
                "text": "It is",
                "tool_calls": [{**LISTED, "arguments": {"a": 1}}],
                "stop_reason": "toolUse",
            },
        ),
        (
            ToolsEnded(HARPER, 1, [ToolResult(ADD, is_error=True, text="x" * 5000, duration_seconds=0.12345)]),
            {
                "kind": "assistant_chunk_results",
                **HEAD,
                "results": [
                    {
                        **LISTED,
                        "is_error": True,
                        "text": "x" * LONGEST_RESULT,
                        "truncated": True,
                        "duration_seconds": 0.123,
                    }
                ],
            },
        ),
        (FromPeer({"kind": "assistant_chunk"}), {"kind": "assistant_chunk"}),
        (
            QuestionAsked(Question("form", "Which?", id="q-1"), "notes: Which?"),
            {"kind": "question", "schema_version": 2, "id": "q-1", "message": "notes: Which?"},
        ),
        (QuestionClosed("q-1", "accept"), {"kind": "answer", "schema_version": 2, "id": "q-1", "action": "accept"}),
        (Admitted(), None),
        (StepBegan("harper", 1, "llm"), None),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_event_has_the_fields_that_clients_know(event: Event, payload: Payload | None) -> None:
    assert payload_of(event) == payload
