"""How much of a conversation goes along."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.client.chat.chat_turns import TOKENS_PER_IMAGE, ChatTurn, Window, rows_of, trimmed, window_of

PICTURE = {"data": "x", "mime_type": "image/png"}


def turn(number: int, words: int = 0, *, images: int = 0) -> ChatTurn:
    """A turn of about `words` tokens and 8 for its two messages."""
    return ChatTurn(number, "complete", "word" * words, (PICTURE,) * images, answer="")


def kept(turns: list[ChatTurn], window: Window | None, message: str = "", images: int = 0) -> list[int]:
    return [one.number for one in trimmed(turns, window, message, images)[0]]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        pytest.param(None, [1, 2, 3], id="nobody knows"),
        pytest.param(Window(1000, 0), [1, 2, 3], id="all fit"),
        pytest.param(Window(310, 0), [2, 3], id="the oldest first"),
        pytest.param(Window(310, 100), [3], id="room for the answer"),
        pytest.param(Window(520, 10_000), [2, 3], id="but at most half for it"),
        pytest.param(Window(100, 0), [], id="not even one"),
        pytest.param(Window(1, 1), [], id="absurd"),
    ],
)
def test_the_newest_turns_that_fit_go_along(window: Window | None, expected: list[int]) -> None:
    newest, dropped = trimmed([turn(number, 90) for number in (1, 2, 3)], window)
    assert ([one.number for one in newest], dropped) == (expected, 3 - len(expected))


def test_a_large_turn_is_not_skipped_for_an_older_small_one() -> None:
    assert kept([turn(1), turn(2, 1000), turn(3)], Window(500, 0)) == [3]


def test_the_new_message_and_images_take_room() -> None:
    turns = [turn(1, 90), turn(2, images=1)]
    window = Window(2 * TOKENS_PER_IMAGE, 0)
    assert kept(turns, window) == [1, 2]
    assert kept(turns, window, message="word" * 1200) == [2]
    assert kept(turns, window, images=1) == []


def test_other_scripts_count_by_their_bytes() -> None:
    assert kept([ChatTurn(1, "complete", "字" * 100, answer="")], Window(100, 0)) == [1]
    assert kept([ChatTurn(1, "complete", "字" * 120, answer="")], Window(100, 0)) == []


def test_only_complete_turns_are_replayed() -> None:
    turns = [turn(1), ChatTurn(2, "error", "no", error="cancelled"), ChatTurn(3, "pending", "now"), turn(4, images=1)]
    assert kept(turns, None) == [1, 4]
    assert rows_of(trimmed(turns, None)[0]) == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "(no text)"},
        {"role": "user", "content": "", "images": [PICTURE]},
        {"role": "assistant", "content": "(no text)"},
    ]


@given(st.lists(st.integers(0, 400), max_size=12), st.integers(1, 4000), st.integers(0, 4000), st.text(max_size=200))
def test_what_goes_along_is_always_the_end_of_the_thread(
    sizes: list[int], context: int, answer: int, message: str
) -> None:
    turns = [turn(number, size) for number, size in enumerate(sizes, start=1)]
    newest, dropped = trimmed(turns, Window(context, answer), message)
    assert [*turns[:dropped], *newest] == turns


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"capabilities": {"context_window": 1000, "max_output_tokens": 100}}, Window(1000, 100)),
        (
            {"_meta": {"io.modelcontextprotocol.registry/publisher-provided": {"capabilities": {"context_window": 9}}}},
            Window(9, 0),
        ),
        ({"capabilities": {"vision": True}}, None),
        ({"capabilities": {"context_window": "much"}}, None),
        ({}, None),
    ],
)
def test_the_window_is_what_the_registry_says(entry: dict[str, object], expected: Window | None) -> None:
    assert window_of(entry) == expected
