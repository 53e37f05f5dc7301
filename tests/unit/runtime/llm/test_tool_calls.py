"""Tool calls that servers of chat completions number in their own ways."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from pallas_gateway.runtime.llm.endings import ToolCalls

type Piece = tuple[int | None, str | None, str | None, str]  # index, id, name, arguments
MERGED = [("echo", '{"text":"Ann"}'), ("add", "{}")]
FORMS: dict[str, list[Piece]] = {
    "OpenAI": [(0, "a", "echo", ""), (0, None, None, '{"text":'), (0, None, None, '"Ann"}'), (1, "b", "add", "{}")],
    "mixed": [(0, "a", "echo", '{"text":'), (1, "b", "add", "{}"), (0, None, None, '"Ann"}')],
    "from 1": [(1, "a", "echo", '{"text":"Ann"}'), (2, "b", "add", "{}")],
    "no index": [(None, "a", "echo", '{"text":'), (None, None, None, '"Ann"}'), (None, "b", "add", "{}")],
    "all 0": [(0, "a", "echo", '{"text":'), (0, None, None, '"Ann"}'), (0, "b", "add", "{}")],
    "blank ids": [(0, "a", "echo", '{"text":'), (0, "", "", '"Ann"}'), (1, "b", "add", "{}")],
    "an id for each piece": [(0, "a", "echo", '{"text":'), (0, "c", None, '"Ann"}'), (1, "b", "add", "{}")],
    "names again": [(0, "a", "echo", '{"text":'), (0, "a", "echo", '"Ann"}'), (1, "b", "add", "{}")],
    "no ids": [(0, None, "echo", '{"text":'), (0, None, "echo", '"Ann"}'), (1, None, "add", "{}")],
    "neither": [(None, None, "echo", '{"text":"Ann"}'), (None, None, "add", "{}")],
    "the name later": [(0, "a", None, ""), (0, None, "echo", '{"text":"Ann"}'), (1, "b", "add", "{}")],
}


@pytest.mark.parametrize("pieces", FORMS.values(), ids=FORMS)
def test_calls_are_told_apart(pieces: list[Piece]) -> None:
    calls, merged = ToolCalls(), dict[int, list[str]]()
    ids = list[str]()
    for piece in pieces:
        choice = chunk(piece).choices[0]
        calls.settle(choice)
        for one in choice.delta.tool_calls or ():
            call = merged.setdefault(one.index, ["", ""])
            ids += [one.id] if one.id else []
            assert one.function is not None
            call[0] = one.function.name or call[0]
            call[1] += one.function.arguments or ""

    assert merged == dict(enumerate(map(list, MERGED)))
    assert len(set(ids)) == len(ids) == 2


def test_an_answer_with_calls_ends_for_their_sake() -> None:
    calls = ToolCalls()
    for reason in ("stop", "length"):
        choice = chunk((0, "a", "echo", "{}"), reason).choices[0]
        calls.settle(choice)
        assert choice.finish_reason == ("tool_calls" if reason == "stop" else reason)


def test_an_answer_without_calls_stops() -> None:
    choice = chunk(None, "stop").choices[0]
    ToolCalls().settle(choice)
    assert choice.finish_reason == "stop"


def chunk(piece: Piece | None, reason: str | None = None) -> ChatCompletionChunk:
    """As the OpenAI library makes one of what fits its types only in part."""
    delta: dict[str, Any] = {}
    if piece is not None:
        index, call_id, name, arguments = piece
        call: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
        call |= {} if index is None else {"index": index}
        call |= {} if call_id is None else {"id": call_id}
        delta = {"tool_calls": [call]}
    return ChatCompletionChunk.construct(choices=[{"index": 0, "delta": delta, "finish_reason": reason}])
