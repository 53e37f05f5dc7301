"""How much of a conversation goes along."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.client.chat.chat_turns import TOKENS_PER_IMAGE, ChatExchange, place_of, room_of, rows_of, trimmed

PICTURE = {"data": "x", "mime_type": "image/png"}


def turn(number: int, words: int = 0, *, images: int = 0) -> ChatExchange:
    """A turn of about `words` tokens and 8 for its two messages."""
    return ChatExchange(number, "complete", "word" * words, (PICTURE,) * images, answer="")


LONG = [turn(number, 90) for number in (1, 2, 3)]
PICTURES = [turn(1, 90), turn(2, images=1)]


@pytest.mark.parametrize(
    ("turns", "room", "message", "images", "kept"),
    [
        pytest.param(LONG, None, "", 0, [1, 2, 3], id="unknown"),
        pytest.param(LONG, 900, "", 0, [1, 2, 3], id="all fit"),
        pytest.param(LONG, 279, "", 0, [2, 3], id="the oldest first"),
        pytest.param(LONG, 90, "", 0, [], id="not even one"),
        pytest.param([turn(1), turn(2, 1000), turn(3)], 450, "", 0, [3], id="no older one for a large one"),
        pytest.param(PICTURES, 2 * TOKENS_PER_IMAGE, "", 0, [1, 2], id="an image"),
        pytest.param(PICTURES, 2 * TOKENS_PER_IMAGE, "word" * 1500, 0, [2], id="a long message"),
        pytest.param(PICTURES, 2 * TOKENS_PER_IMAGE - 99, "", 1, [], id="a message with an image"),
        pytest.param([ChatExchange(1, "complete", "字" * 100, answer="")], 90, "", 0, [1], id="bytes"),
        pytest.param([ChatExchange(1, "complete", "字" * 120, answer="")], 90, "", 0, [], id="more bytes"),
    ],
)
def test_the_newest_turns_that_fit_go_along(
    turns: list[ChatExchange], room: int | None, message: str, images: int, kept: list[int]
) -> None:
    newest, dropped = trimmed(turns, room, message, images)
    assert ([one.number for one in newest], dropped) == (kept, len(turns) - len(kept))


def test_only_complete_turns_are_replayed() -> None:
    turns = [
        turn(1),
        ChatExchange(2, "error", "no", error="cancelled"),
        ChatExchange(3, "pending", "now"),
        turn(4, images=1),
    ]
    assert rows_of(trimmed(turns, None)[0]) == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "(no text)"},
        {"role": "user", "content": "", "images": [PICTURE]},
        {"role": "assistant", "content": "(no text)"},
    ]


@given(st.lists(st.integers(0, 400), max_size=12), st.integers(-9, 4000), st.text(max_size=200))
def test_what_goes_along_is_always_the_end_of_the_thread(sizes: list[int], room: int, message: str) -> None:
    turns = [turn(number, size) for number, size in enumerate(sizes, start=1)]
    newest, dropped = trimmed(turns, room, message)
    assert [*turns[:dropped], *newest] == turns


@pytest.mark.parametrize(
    ("capabilities", "room"),
    [
        ({"context_window": 1000, "max_output_tokens": 100}, 800),
        ({"context_window": 1000, "max_output_tokens": 10_000}, 400),
        ({"context_window": 1000}, 900),
        ({"context_window": 1, "max_output_tokens": 1}, 1),
        ({"vision": True}, None),
        ({"context_window": "much"}, None),
        ({}, None),
    ],
)
def test_the_room_is_what_the_registry_says(capabilities: dict[str, object], room: int | None) -> None:
    published = {"io.modelcontextprotocol.registry/publisher-provided": {"capabilities": capabilities}}
    assert room_of({"capabilities": capabilities}) == room_of({"_meta": published}) == room


@pytest.mark.parametrize(
    ("url", "gateway"),
    [
        ("http://127.0.0.1:24200/", "http://localhost:24200"),
        ("http://[::1]:24200", "http://localhost:24200"),
        ("https://agents.example.com/team", "https://agents.example.com/team"),
    ],
)
def test_a_gateway_is_one_under_all_its_names(url: str, gateway: str) -> None:
    assert place_of(url, "a_b") == (gateway, "a-b")
