"""JSON in pieces is the document as a whole, and keeps nothing that was sent."""

import json
from typing import Any

import pytest

from pallas_gateway.doors.http import json_pieces
from pallas_gateway.doors.http.json_pieces import JsonInPieces, pieces


def document() -> dict[str, Any]:
    texts = ["x" * 40, '"\\\n\t\x00\N{SNOWMAN}\U0001f600' * 9, ""]
    return {"texts": texts, "others": [None, True, 1, 2.5, {}, [], {"a": {"b": ["c"]}}], "nextAfter": None}


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_pieces_make_the_document(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(json_pieces, "PIECE", size)
    made = [*pieces(document())]
    assert json.loads(b"".join(made)) == document()
    assert max(len(piece.decode()) for piece in made) <= 7 * size + 20  # an escaped character has six


async def test_what_was_sent_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "PIECE", 8)
    sent: dict[str, Any] = {"messages": ["first text", "second text"]}
    left = list[list[str | None]]()

    async def send(message: Any) -> None:
        if b"second" in message.get("body", b""):
            left.append(list(sent["messages"]))

    await JsonInPieces(sent)({"type": "http"}, _nothing, send)
    assert left == [[None, None]]


async def _nothing() -> Any:
    raise AssertionError("nothing is read")
