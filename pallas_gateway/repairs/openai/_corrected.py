"""A stream of chunks that are corrected before fast-agent reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self


class Corrected:
    """The chunks of a stream; `correct` is called with each of them, and changes it in place."""

    def __init__(self, stream: Any, correct: Callable[[Any], object]) -> None:
        self._stream = stream
        self._chunks = aiter(stream)
        self._correct = correct

    def __getattr__(self, name: str) -> Any:
        """Forward to the stream."""
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._chunks)
        self._correct(chunk)
        return chunk
