"""Words stay whole at the end of a line, however their letters arrive."""

import pytest

from pallas_gateway.client.chat.line_breaks import LineBreaks


def drawn(pieces: list[str], width: int = 10) -> list[str]:
    """The lines of a terminal that wraps at its edge."""
    lines = [""]
    breaks = LineBreaks(lambda: width)
    for character in "".join(map(breaks.take, pieces)).replace("\x1b[K", "\x1b"):
        if character == "\n":
            lines.append("")
        elif character == "\b":
            lines[-1] = lines[-1][:-1]
        elif character != "\x1b":
            if len(lines[-1]) == width + 1:
                lines.append("")
            lines[-1] += character
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("the notes that fit best", ["the notes", "that fit", "best"]),
        ("exactly 10 x", ["exactly 10", "x"]),
        ("a\nb  c", ["a", "b  c"]),
        ("in thi_s_long_word here", ["in thi_s_lo", "ng_word", "here"]),
        ("1234567890 a", ["1234567890", "a"]),
        ("", [""]),
    ],
)
def test_words_are_not_broken_in_one_piece_or_in_many(text: str, lines: list[str]) -> None:
    assert drawn([text]) == lines
    if "long_word" not in text:  # in pieces it is moved to the next line first, and broken there
        assert drawn(list(text)) == lines
        assert drawn([text[:5], text[5:]]) == lines


def test_a_word_is_shown_as_it_grows() -> None:
    breaks = LineBreaks(lambda: 10)
    pieces = ("the not", "es", " be", "tter")
    assert [breaks.take(piece) for piece in pieces] == ["the not", "es", " \nbe", "tter"]
    assert [breaks.take(piece) for piece in (" sho", "wn")] == [" sho", "\b\b\b\x1b[K\nshown"]
