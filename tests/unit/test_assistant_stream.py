"""The payloads of the assistant stream, field by field."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.calls import assistant_stream
from pallas_gateway.calls.assistant_stream import Emitter, ToolCall, ToolResult, ToolsEnded, TurnEnded

HARPER = Emitter("harper", "c-1")
SEARCH = ToolCall("call_1", "argos", "web_search", {"query": "x"})


def test_a_chunk_says_what_the_model_said_and_which_tools_it_asked_for() -> None:
    own_tool = ToolCall("call_2", None, "summarise", {})

    assert TurnEnded(HARPER, 2, "Let me see.", [SEARCH, own_tool], "x").payload() == {
        "kind": "assistant_chunk",
        "schema_version": 2,
        "agent": "harper",
        "conversation_id": "c-1",
        "iteration": 2,
        "text": "Let me see.",
        "tool_calls": [
            {"id": "call_1", "server": "argos", "name": "web_search", "arguments": {"query": "x"}},
            {"id": "call_2", "server": None, "name": "summarise", "arguments": {}},
        ],
        "stop_reason": "x",
    }


def test_results_say_what_each_tool_brought() -> None:
    found = ToolResult(SEARCH, False, "found", 0.12345)

    assert ToolsEnded(Emitter("harper", None), 1, [found]).payload() == {
        "kind": "assistant_chunk_results",
        "schema_version": 2,
        "agent": "harper",
        "conversation_id": None,
        "iteration": 1,
        "results": [
            {
                "id": "call_1",
                "server": "argos",
                "name": "web_search",
                "is_error": False,
                "text": "found",
                "truncated": False,
                "duration_seconds": 0.123,
            }
        ],
    }


def test_a_delta_holds_the_new_text_alone() -> None:
    assert assistant_stream.delta(HARPER, 3, "more") == {
        "kind": "assistant_delta",
        "schema_version": 2,
        "agent": "harper",
        "conversation_id": "c-1",
        "iteration": 3,
        "text": "more",
    }


@given(length=st.integers(3990, 4010))
def test_a_result_is_cut_at_4000_characters_and_says_so(length: int) -> None:
    text = "é" * length
    payload = ToolsEnded(HARPER, 1, [ToolResult(SEARCH, False, text, 1.0)]).payload()

    assert payload["results"][0]["text"] == text[:4000]
    assert payload["results"][0]["truncated"] == (length > 4000)


def test_a_chunk_keeps_no_hold_on_the_arguments_of_the_running_call() -> None:
    arguments = {"query": "x"}
    payload = TurnEnded(HARPER, 1, "", [ToolCall("1", None, "t", arguments)]).payload()
    arguments["query"] = "changed later"

    assert payload["tool_calls"][0]["arguments"] == {"query": "x"}
