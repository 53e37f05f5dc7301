"""The reader of the assistant stream, on payloads that no gateway should send."""

from typing import Any

import pytest

from tests.support.call_tree import call_tree

Payload = dict[str, Any]


def chunk(agent: str, text: str = "", calls: tuple[tuple[str, str | None, str], ...] = ()) -> Payload:
    """A chunk of the called agent itself; calls are (id, server, message)."""
    tool_calls = [
        {"id": id_, "server": server, "name": "send_message", "arguments": {"message": message}}
        for id_, server, message in calls
    ]
    return {"kind": "assistant_chunk", "agent": agent, "text": text, "tool_calls": tool_calls}


def relayed(payload: Payload, *hops: tuple[str, str]) -> Payload:
    """`payload` as it arrives through `hops` of (server, call id), innermost first."""
    return {**payload, "via_agent": [hop[0] for hop in hops], "call_path": [hop[1] for hop in hops]}


RESULT: Payload = {"kind": "assistant_chunk_results", "agent": "root"}
ASKED = chunk("root", "", (("1", "peer", "a"),))


@pytest.mark.parametrize(
    ("payloads", "problem"),
    [
        ([relayed(chunk("peer"), ("peer", "1"))], "nobody asked"),
        ([ASKED, relayed(chunk("peer"), ("other", "1"))], "via_agent says"),
        ([ASKED, {**chunk("peer"), "via_agent": ["peer"], "call_path": []}], "differ in length"),
        ([ASKED, {**chunk("peer"), "via_agent": ["peer"]}], "differ in length"),
        ([ASKED, relayed(chunk("leaf"), ("leaf", "2"), ("peer", "1"))], "nobody asked"),
        ([ASKED, ASKED], "two calls have the id 1"),
        ([ASKED, {**RESULT, "results": [{"id": "2", "text": "x"}]}], "which nobody asked for"),
    ],
)
def test_payloads_that_contradict_each_other_are_no_tree(payloads: list[Payload], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        call_tree(payloads)
