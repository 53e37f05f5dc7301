"""The payloads of the assistant stream, field by field."""

from __future__ import annotations

from pallas_gateway.calls.assistant_stream import Emitter, ToolCall, TurnEnded

HARPER = Emitter("harper", "c-1")


def test_a_chunk_keeps_no_hold_on_the_arguments_of_the_running_call() -> None:
    arguments = {"query": "x"}
    payload = TurnEnded(HARPER, 1, "", [ToolCall("1", None, "t", arguments)]).payload()
    arguments["query"] = "changed later"

    assert payload["tool_calls"][0]["arguments"] == {"query": "x"}
