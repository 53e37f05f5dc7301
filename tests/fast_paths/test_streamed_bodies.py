"""A body that is sent in pieces has the bytes of the whole one."""

import asyncio
import base64
import secrets
from dataclasses import replace
from typing import Any

import pytest
from pydantic_core import to_json

from pallas_gateway.calls.current import calling, running_call
from pallas_gateway.fast_paths import _streamed_bodies as streamed_bodies
from pallas_gateway.fast_paths._streamed_bodies import SHORTEST, StreamedBody, encoded

LARGE, LARGER = (base64.b64encode(one * SHORTEST).decode() for one in (b"one/", b"another+"))
OTHER = "B" * 2 * SHORTEST
URL = "data:image/png;base64,"


def encoded_with_images(body: Any) -> bytes | StreamedBody:
    with calling(replace(running_call.get(), images=(LARGE, "c2hvcnQ=", LARGER))):
        return encoded(body, to_json)


@pytest.mark.parametrize(
    ("body", "images"),
    [
        pytest.param({"messages": [{"image_url": {"url": URL + LARGE}}, 'ä"\u2028']}, 1, id="a data URL"),
        pytest.param({"a": LARGER, "b": [LARGE, {"c": LARGER}]}, 3, id="several"),
        pytest.param({"a": f'"\\\x07{LARGE}'}, 1, id="behind what needs escapes"),
        pytest.param({"a": OTHER, "b": LARGE}, 1, id="other long texts"),
    ],
)
async def test_a_body_with_large_images_is_sent_in_pieces(body: Any, images: int) -> None:
    streamed = encoded_with_images(body)

    assert isinstance(streamed, StreamedBody)
    for _ in range(2):  # a request may be repeated
        pieces = [piece async for piece in streamed]
        assert b"".join(pieces) == to_json(body)
        assert max(map(len, pieces)) <= max(256 * 1024, 2 * len(OTHER))
        assert len(pieces) > 2 * images
    assert len(streamed) == len(to_json(body))


@pytest.mark.parametrize("body", [{"a": "c2hvcnQ="}, {"a": OTHER, "n": [1, 0.5, None, True]}, {"a": LARGE + "="}, {}])
def test_a_body_without_large_images_of_the_call_is_one_piece(body: Any) -> None:
    assert encoded_with_images(body) == to_json(body)


def test_a_body_of_a_call_without_images_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(streamed_bodies, "_Marks")
    with calling(replace(running_call.get(), images=("c2hvcnQ=",))):
        assert encoded({"a": LARGE}, to_json) == to_json({"a": LARGE})


def test_a_body_that_has_the_mark_itself_is_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _: "mark")
    body = {"a": LARGE, "b": "a mark"}
    assert encoded_with_images(body) == to_json(body)


async def test_other_work_is_done_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_gateway.tasks._LONG_SECONDS", 0)
    done = []
    async for piece in StreamedBody([b"[", b"]"], ["A" * 512 * 1024]):
        done.append(piece[:1])
        asyncio.get_running_loop().call_soon(done.append, b"other")
    assert done == [b"[", b"A", b"other", b"other", b"A", b"other", b"]"]
