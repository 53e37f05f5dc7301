"""What systemd is told of the gateway: ready, stopping, how it is, and that its event loop turns.

The protocol is that of sd_notify(3): lines in a datagram to the socket that `NOTIFY_SOCKET` names. Without that
variable nothing is sent. systemd's own library is not needed for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from time import monotonic_ns
from typing import TYPE_CHECKING, Self

from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STATUS_SECONDS = 5.0
"""How often the status is looked at where no watchdog wants to hear more often."""

_log = logging.getLogger("pallas.server")


class ServiceManager:
    """An async context manager around all that serves: while it is open, the watchdog is fed and the status kept.

    Args:
        environ: `NOTIFY_SOCKET` (a path, or a name in the abstract namespace after `@`), `WATCHDOG_USEC` and
            `WATCHDOG_PID`, as systemd sets them.
        status: how the service is, in one line; asked again and again.
    """

    def __init__(self, environ: Mapping[str, str], status: Callable[[], str]) -> None:
        self._address = _address_of(environ.get("NOTIFY_SOCKET", ""))
        self.watchdog_seconds = _watchdog_seconds(environ)
        self._status = status
        self._told_status = ""
        self._is_heard = True
        self._tasks = TaskOwner(close_seconds=0)

    async def __aenter__(self) -> Self:
        """Begin to feed the watchdog; nobody is told of a start yet."""
        if self._address is not None:
            self._tasks.spawn(self._keep_telling(), name="service manager", report=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Say no more."""
        await self._tasks.__aexit__()

    def ready(self) -> None:
        """Start-up, or a reload, is complete."""
        self._tell("READY=1", *self._changed_status())

    def reloading(self) -> None:
        """The service reads its configuration again; `ready` says that it has."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The service has begun to stop."""
        self._tell("STOPPING=1", *self._changed_status())

    async def _keep_telling(self) -> None:
        watched = self.watchdog_seconds is not None
        # Half of its time, as sd_watchdog_enabled(3) recommends: one that comes late is not the end yet.
        pause = min(STATUS_SECONDS, (self.watchdog_seconds or 2 * STATUS_SECONDS) / 2)
        while True:
            await asyncio.sleep(pause)
            self._tell(*(["WATCHDOG=1"] if watched else []), *self._changed_status())

    def _changed_status(self) -> list[str]:
        status = self._status()
        if status == self._told_status:
            return []
        self._told_status = status
        return [f"STATUS={status}"]

    def _tell(self, *lines: str) -> None:
        if self._address is None or not lines:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if self._is_heard:  # said once: the watchdog comes every few seconds
                _log.warning("service manager notification failed", extra={"error": error.strerror or str(error)})
            self._is_heard = False
        else:
            self._is_heard = True


def _address_of(name: str) -> str | None:
    """The socket's address; None for none, and for the kinds that are no Unix socket (`vsock:…`)."""
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name if name.startswith("/") else None


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """The time within which systemd wants to hear from this process; None if it does not watch it."""
    microseconds = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()) or not microseconds.isdecimal():
        return None
    return int(microseconds) / 1_000_000 or None
