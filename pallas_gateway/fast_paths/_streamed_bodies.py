"""Bodies of requests with large images (or documents), which are sent piece by piece and never exist as a whole.

The base64 of an image needs no escapes in JSON. So the rest of a body is encoded with marks in place of its images, and
each image is sent from the text that the caller sent.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, override

import httpx2

from pallas_gateway.calls.current import running_call
from pallas_gateway.tasks import give_way

SHORTEST = 64 * 1024
"""Characters of the base64 of an image that is sent in pieces."""
_PIECE = 256 * 1024
"""Characters that are sent at once."""


def encoded(body: Mapping[str, Any], encode: Callable[[Any], bytes]) -> bytes | StreamedBody:
    """Return a body, in pieces if it has large images of the current call.

    Args:
        body: JSON values.
        encode: returns JSON values as UTF-8.
    """
    large = [image for image in running_call.get().images if len(image) >= SHORTEST]
    if not large:
        return encode(body)
    marks = _Marks(large)
    pieces = encode(marks.placed_in(body)).split(marks.mark.encode())
    if len(pieces) != len(marks.images) + 1:  # the body itself has the mark
        return encode(body)
    return StreamedBody(pieces, marks.images) if marks.images else pieces[0]


class StreamedBody(httpx2.AsyncByteStream):
    """A body that can be sent again: pieces of JSON with images between them."""

    def __init__(self, pieces: Sequence[bytes], images: Sequence[str]) -> None:
        self._pieces = pieces
        self._images = images

    def __len__(self) -> int:
        return sum(map(len, self._pieces)) + sum(map(len, self._images))

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the body."""
        for piece, image in zip(self._pieces, (*self._images, ""), strict=True):
            yield piece
            for begin in range(0, len(image), _PIECE):
                began = perf_counter()
                yield image[begin : begin + _PIECE].encode()
                await give_way(began)


class PlainMessages(list[Any]):
    """The messages of a request that consists of JSON's own types."""


class _Marks:
    """Marks for the images of one request; `images` are those that were found, in their order."""

    def __init__(self, images: Sequence[str]) -> None:
        self.mark = secrets.token_hex(16)
        self.images: list[str] = []
        self._known = images

    def placed_in(self, value: Any) -> Any:
        """Return a JSON value with a mark in place of each image, at the end of a string or as all of it."""
        if isinstance(value, str):
            return self._marked(value) if len(value) >= SHORTEST else value
        if isinstance(value, dict):
            return {key: self.placed_in(one) for key, one in value.items()}
        return [self.placed_in(one) for one in value] if isinstance(value, list) else value

    def _marked(self, text: str) -> str:
        image = next((one for one in self._known if text.endswith(one)), None)
        if image is None:
            return text
        self.images.append(image)
        return text[: -len(image)] + self.mark
