"""A channel whose notifications are sent while a block runs, as they are while a call does."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pallas_gateway.events.channel import Channel


@asynccontextmanager
async def sending(channel: Channel) -> AsyncGenerator[asyncio.Task[None]]:
    """Send what the block puts into `channel`, and at its end what still waits; yields the task that sends."""
    work: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    sender = asyncio.create_task(channel.send_until(work))
    await asyncio.sleep(0)
    try:
        yield sender
        work.set_result(None)
        await sender
    finally:
        work.cancel()
        sender.cancel()
