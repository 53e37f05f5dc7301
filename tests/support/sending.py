"""Notifications that are sent while a block runs, as they are while a call does."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pallas_gateway.doors.mcp.notifications import Notifications


@asynccontextmanager
async def sending(notifications: Notifications) -> AsyncGenerator[asyncio.Task[None]]:
    """Send the events that the block adds, and at its end those that wait; yield the task that sends."""
    work: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    sender = asyncio.create_task(notifications.send_until(work))
    await asyncio.sleep(0)
    try:
        yield sender
        work.set_result(None)
        await sender
    finally:
        work.cancel()
        sender.cancel()
