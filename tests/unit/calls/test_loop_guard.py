"""When a loop is halted: against an oracle that keeps every round and compares them the slow way."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from pallas_gateway.calls.loop_guard import LoopGuard, Reason, ToolOutcome, signature

type Round = Sequence[ToolOutcome]


def read(path: str, result: str = "nothing") -> ToolOutcome:
    return ToolOutcome("read", {"path": path}, result)


A: Round = [read("a")]
B: Round = [read("b")]
C: Round = [read("c")]

arguments = st.dictionaries(
    st.sampled_from(["x", "y", "z"]), st.none() | st.booleans() | st.integers(0, 1) | st.sampled_from(["", "q", "é\n"])
)
outcomes = st.builds(ToolOutcome, st.sampled_from(["read", "write"]), arguments, st.sampled_from(["", "ok", "ok\nok"]))
rounds = st.lists(outcomes, min_size=1, max_size=3)
# Few different rounds, so that repeats and alternations really happen; A appears twice in a row as parallel calls too.
plays = st.lists(st.sampled_from([A, B, C, [*A, *A], [*A, *B]]), max_size=24)


def halts_at(guard: LoopGuard, play: Sequence[Round]) -> tuple[int, Reason] | None:
    """After which round (from 1) the loop is halted, and why."""
    for number, round_ in enumerate(play, start=1):
        if (reason := guard.after(round_)) is not None:
            return number, reason
    return None


def oracle(play: Sequence[Round], threshold: int) -> tuple[int, str] | None:
    """The same by the words of the contract, from the whole past."""
    past = [bag(round_) for round_ in play]
    for number in range(1, len(past) + 1):
        last, longer = past[max(0, number - threshold) : number], past[max(0, number - 2 * threshold) : number]
        if threshold and len(last) == threshold and all(one == last[0] for one in last):
            return number, "repeat"
        if threshold and len(longer) == 2 * threshold and alternates(longer):
            return number, "oscillation"
    return None


def alternates(past: list[Counter[str]]) -> bool:
    return all(a != b for a, b in pairwise(past)) and all(a == c for a, c in zip(past, past[2:], strict=False))


def bag(round_: Round) -> Counter[str]:
    return Counter(f"{one.tool} {json.dumps(one.arguments, sort_keys=True)} {one.result!r}" for one in round_)


@given(play=plays, threshold=st.integers(0, 4))
def test_any_sequence_of_rounds_halts_exactly_when_it_should(play: list[Round], threshold: int) -> None:
    assert halts_at(LoopGuard(threshold), play) == oracle(play, threshold)


@given(first=rounds, second=rounds)
def test_rounds_have_one_signature_exactly_if_they_hold_the_same_calls(
    first: list[ToolOutcome], second: list[ToolOutcome]
) -> None:
    assert (signature(first) == signature(second)) == (bag(first) == bag(second))


@given(round_=rounds, data=st.data())
def test_the_order_of_parallel_calls_makes_no_difference(round_: list[ToolOutcome], data: DataObject) -> None:
    assert signature(data.draw(st.permutations(round_))) == signature(round_)


@given(given_arguments=arguments, data=st.data())
def test_the_order_of_argument_keys_makes_no_difference(given_arguments: dict[str, Any], data: DataObject) -> None:
    reordered = dict(data.draw(st.permutations(list(given_arguments.items()))))
    nested, nested_reordered = {"in": [given_arguments]}, {"in": [reordered]}

    assert signature([ToolOutcome("t", nested, "r")]) == signature([ToolOutcome("t", nested_reordered, "r")])
