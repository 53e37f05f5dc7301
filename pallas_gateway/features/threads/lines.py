"""Lines of waiting tasks: of those with one key, one runs at a time, in the order of their arrival."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Lines:
    """The lines of this process; a key without tasks takes no memory."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def turn(self, key: str, latest: float) -> AsyncIterator[None]:
        """Exclude others with the key during the block.

        Args:
            key: of the line.
            latest: end of the wait, by the event loop's clock.

        Raises:
            TimeoutError: the others had not ended by then.
        """
        line = self._lines.setdefault(key, _Line())
        line.length += 1
        try:
            async with asyncio.timeout_at(latest):
                await line.lock.acquire()
            try:
                yield
            finally:
                line.lock.release()
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[key]


class _Line:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0
