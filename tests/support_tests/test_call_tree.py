"""The reader of the assistant stream, on payloads written by hand."""

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


def results(agent: str, **texts: str) -> Payload:
    return {
        "kind": "assistant_chunk_results",
        "agent": agent,
        "results": [{"id": id_, "text": text} for id_, text in texts.items()],
    }


def relayed(payload: Payload, *hops: tuple[str, str]) -> Payload:
    """`payload` as it arrives through `hops` of (server, call id), innermost first."""
    return {**payload, "via_agent": [hop[0] for hop in hops], "call_path": [hop[1] for hop in hops]}


def test_no_payloads_are_a_call_of_which_nothing_is_known() -> None:
    assert call_tree([]).outline() == [""]


def test_a_single_agent_is_a_tree_of_what_it_said_and_the_tools_it_called() -> None:
    tree = call_tree(
        [chunk("root", "Let me see.", (("1", "tools", "x"),)), results("root", **{"1": "3"}), chunk("root", "It is 3.")]
    )

    assert tree.outline() == ["root says Let me see. | It is 3.", '  tools/send_message {"message": "x"}:']
    assert tree.calls[0].results == ["3"]


def test_parallel_calls_of_one_peer_stay_apart_at_any_depth() -> None:
    one, other = ("peer", "1"), ("peer", "2")
    tree = call_tree(
        [
            chunk("root", "", (("1", "peer", "a"), ("2", "peer", "b"))),
            relayed(chunk("peer", "", (("9", "leaf", "b.1"),)), other),
            relayed(chunk("peer", "", (("8", "leaf", "a.1"),)), one),
            relayed(chunk("leaf", "leaf of b"), ("leaf", "9"), other),
            relayed(chunk("leaf", "leaf of a"), ("leaf", "8"), one),
            relayed(results("peer", **{"8": "leaf of a"}), one),
            relayed(chunk("peer", "done b"), other),
            relayed(chunk("peer", "done a"), one),
            chunk("root", "done"),
        ]
    )

    assert tree.outline() == [
        "root says done",
        '  peer/send_message {"message": "a"}: peer says done a',
        '    leaf/send_message {"message": "a.1"}: leaf says leaf of a',
        '  peer/send_message {"message": "b"}: peer says done b',
        '    leaf/send_message {"message": "b.1"}: leaf says leaf of b',
    ]
    assert tree.calls[0].calls[0].results == ["leaf of a"]


def test_one_call_id_in_two_branches_is_two_calls() -> None:
    tree = call_tree(
        [
            chunk("root", "", (("1", "left", "a"), ("2", "right", "b"))),
            relayed(chunk("left", "", (("x", "leaf", "a.1"),)), ("left", "1")),
            relayed(chunk("right", "", (("x", "leaf", "b.1"),)), ("right", "2")),
            relayed(chunk("leaf", "of right"), ("leaf", "x"), ("right", "2")),
        ]
    )

    assert [line.strip() for line in tree.outline()] == [
        "root says",
        'left/send_message {"message": "a"}: left says',
        'leaf/send_message {"message": "a.1"}:',
        'right/send_message {"message": "b"}: right says',
        'leaf/send_message {"message": "b.1"}: leaf says of right',
    ]


def test_the_inner_agents_of_a_workflow_speak_under_their_own_names() -> None:
    tree = call_tree([chunk("drafter", "draft"), chunk("editor", "edited")])

    assert tree.outline() == ["drafter says draft; editor says edited"]


def test_deltas_are_no_part_of_the_tree() -> None:
    assert call_tree([{"kind": "assistant_delta", "agent": "root", "text": "It"}]).outline() == [""]


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
        ([ASKED, results("root", **{"2": "x"})], "which nobody asked for"),
    ],
)
def test_payloads_that_contradict_each_other_are_no_tree(payloads: list[Payload], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        call_tree(payloads)
