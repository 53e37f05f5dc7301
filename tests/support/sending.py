"""Notifications that are sent while a block runs, as they are while a call does."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

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
