"""Requests for calls that run in another process of the gateway: the HTTP request itself is forwarded to that process.

The name of a process stands where a client returns it: in the id of a question of the initialize era, and before the
sealed state of 2026-07-28. A name that a client forges leads to a process that refuses what it cannot open.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Send

TAKE_KEY = "pallas_gateway.take"
"""Key of the scope of a forwarded request: the function by which its process takes it."""
NOT_THERE_KEY = "pallas_gateway.not_there"
"""Key of the scope of a request: the `NotThere` of a call that was not found in its process."""
FOR_ONE_KEY = "pallas_gateway.for_one"
"""Key of the scope of a request that all processes are asked: each answers for itself alone."""


@dataclass(frozen=True, slots=True)
class NotThere:
    """A call that is not in the process of this name any more; `is_lost` if the process took the request and ended."""

    process: str
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class ProcessAnswer:
    """The answer of another process to a request that all processes are asked."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class Elsewhere:
    """The other processes of the gateway, of which a process that is alone has none.

    Attributes:
        process: the name of this process.
        worker: the number of this process, from 1, of so many `workers`.
        started_at: the start of the gateway, the same for all its processes.
        app: answers the requests that other processes forward; None before this process serves.
    """

    def __init__(self, process: str | None = None) -> None:
        self.process = process or secrets.token_hex(4)
        self.worker = self.workers = 1
        self.started_at = datetime.now(UTC)
        self.app: ASGIApp | None = None

    async def answered_by(
        self, process: str | None, request: Request, body: bytes, send: Send, *, if_cut: Callable[[], bytes]
    ) -> bool:
        """Have the process of a call answer a request, whose body was read; return False if this one has to answer it.

        A request is forwarded once, and after this process has decided on its access; the other one decides again.

        Args:
            process: the name in the request; None for a request without a name.
            request: its `receive` returns the disconnect of the client.
            body: of the request.
            send: sends the response.
            if_cut: returns the last event of an event stream whose process ends before its response.

        Raises:
            CallRefusedError: `busy`; that process does not take the request in time.
        """
        if (take := request.scope.get(TAKE_KEY)) is not None:
            take()
        elif process is not None and process != self.process:
            missing = await self._forward(process, request, body, send, if_cut)
            request.scope[NOT_THERE_KEY] = missing
            return missing is None
        return False

    async def ask_all(self, request: Request) -> Sequence[ProcessAnswer]:
        """Return the answers of the other processes to a request without a body; those of processes in time only.

        Each decides on the access again, and asks no others.
        """
        del request
        return ()

    async def _forward(
        self, process: str, request: Request, body: bytes, send: Send, if_cut: Callable[[], bytes]
    ) -> NotThere | None:
        del request, body, send, if_cut
        return NotThere(process)
