"""Which payloads of a peer go on, and what each gateway on the way adds to them."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.calls.assistant_stream import LOGGER, PeerCall, relayed

DEPTH = 3
CALL = PeerCall("search", "send_message", "call_7")
CHUNK = {"kind": "assistant_chunk", "schema_version": 2, "agent": "search", "conversation_id": None, "iteration": 1}
DECORATION = {"via_agent", "call_path", "parent_call_id", "schema_version"}

names = st.text(min_size=1, max_size=8)
json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5)


@st.composite
def payloads(draw: st.DrawFn, *, deepest: int = DEPTH - 1) -> dict[str, Any]:
    """Whatever a Pallas of version 2 or later may send, with fields nobody has thought of yet."""
    depth = draw(st.integers(0, deepest))
    decorated = {
        "via_agent": draw(st.lists(names, min_size=depth, max_size=depth)),
        "call_path": draw(st.lists(names, min_size=depth, max_size=depth)),
        "parent_call_id": draw(names),
        "schema_version": 3,
    }
    others = draw(st.dictionaries(names.filter(lambda name: name not in {*DECORATION, "kind"}), json_values))
    kind = draw(st.sampled_from(["assistant_chunk", "assistant_chunk_results"]))
    return {**others, "kind": kind, "schema_version": draw(st.integers(2, 9)), **(decorated if depth else {})}


@given(payload=payloads(), call=st.builds(PeerCall, names, names, names))
def test_each_hop_appends_one_element_to_both_lists_and_changes_nothing_else(
    payload: dict[str, Any], call: PeerCall
) -> None:
    received = copy.deepcopy(payload)
    passed_on = relayed(LOGGER, payload, call, max_depth=DEPTH)

    assert passed_on is not None
    assert passed_on["via_agent"] == [*received.get("via_agent", []), call.server]
    assert passed_on["call_path"] == [*received.get("call_path", []), call.tool_call_id]
    assert passed_on["parent_call_id"] == call.tool_call_id
    assert passed_on["schema_version"] == 3
    assert {k: v for k, v in passed_on.items() if k not in DECORATION} == {
        k: v for k, v in received.items() if k not in DECORATION
    }
    assert payload == received


@pytest.mark.parametrize(
    "what",
    [
        {**CHUNK, "schema_version": 1},
        {**CHUNK, "schema_version": "2"},
        {**CHUNK, "schema_version": True},
        {key: value for key, value in CHUNK.items() if key != "schema_version"},
        {**CHUNK, "kind": "assistant_delta"},
        {**CHUNK, "kind": "assistant_chunk_summary"},
        {**CHUNK, "kind": ["assistant_chunk"]},
        {**CHUNK, "kind": None},
        "a line of log",
        ["assistant_chunk"],
        None,
    ],
    ids=repr,
)
def test_what_is_no_chunk_of_version_2_or_later_is_dropped(what: object) -> None:
    assert relayed(LOGGER, what, CALL, max_depth=DEPTH) is None


@pytest.mark.parametrize("logger", ["pallas.other", "pallas.assistant_stream.x", "", None])
def test_messages_of_other_loggers_are_dropped(logger: str | None) -> None:
    assert relayed(logger, CHUNK, CALL, max_depth=DEPTH) is None


def test_a_chunk_of_no_known_tool_call_is_dropped() -> None:
    assert relayed(LOGGER, CHUNK, None, max_depth=DEPTH) is None


@given(junk=json_values)
def test_lists_that_are_none_do_no_harm(junk: object) -> None:
    passed_on = relayed(LOGGER, {**CHUNK, "via_agent": junk, "call_path": junk}, CALL, max_depth=1_000)

    assert passed_on is not None
    assert passed_on["via_agent"][-1] == "search"
    assert all(isinstance(one, str) for one in (*passed_on["via_agent"], *passed_on["call_path"]))
