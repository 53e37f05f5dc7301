"""Notifies systemd: ready, reloading, stopping, status, and watchdog.

The protocol is sd_notify(3): lines in a datagram to the socket that `NOTIFY_SOCKET` names. Without that variable
nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Self

from pallas_gateway.tasks import TaskOwner

STATUS_SECONDS = 5.0
"""Interval of status updates, unless the watchdog requires a shorter one."""

_log = logging.getLogger("pallas.server")


class ServiceManager:
    """Sends notifications; an async context manager during which the watchdog is fed and the status updated.

    Args:
        environ: `NOTIFY_SOCKET` (a path, or a name in the abstract namespace after `@`), `WATCHDOG_USEC` and
            `WATCHDOG_PID`, as systemd sets them.
        status: returns the state of the service in one line.
    """

    def __init__(
        self, environ: Mapping[str, str], status: Callable[[], str], *, status_seconds: float = STATUS_SECONDS
    ) -> None:
        self._address = _address_of(environ.get("NOTIFY_SOCKET", ""))
        self.watchdog_seconds = _watchdog_seconds(environ)
        self._status = status
        self._status_seconds = status_seconds
        self._is_reachable = True
        self._tasks = TaskOwner(close_seconds=0)

    async def __aenter__(self) -> Self:
        """Start feeding the watchdog."""
        if self._address is not None:
            self._tasks.spawn(self._keep_notifying(), name="service manager", report=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop notifying."""
        await self._tasks.__aexit__()

    def ready(self) -> None:
        """Notify that the start or a reload is complete."""
        self._notify("READY=1", self._status_line())

    def reloading(self) -> None:
        self._notify("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._notify("STOPPING=1", self._status_line())

    async def _keep_notifying(self) -> None:
        watched = self.watchdog_seconds is not None
        # Half of its time, as sd_watchdog_enabled(3) recommends.
        pause = min(self._status_seconds, (self.watchdog_seconds or 2 * self._status_seconds) / 2)
        while True:
            await asyncio.sleep(pause)
            self._notify(*(["WATCHDOG=1"] if watched else []), self._status_line())

    def _status_line(self) -> str:
        return f"STATUS={self._status()}"

    def _notify(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if self._is_reachable:  # logged once
                _log.warning("service manager notification failed", extra={"error": error.strerror or str(error)})
            self._is_reachable = False
        else:
            self._is_reachable = True


def _address_of(name: str) -> str | None:
    """Return the address of the socket; None without one, and for others than Unix sockets (`vsock:…`)."""
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name if name.startswith("/") else None


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """Return the time limit of the watchdog; None if systemd does not watch this process."""
    microseconds = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()) or not microseconds.isdecimal():
        return None
    return int(microseconds) / 1_000_000 or None
