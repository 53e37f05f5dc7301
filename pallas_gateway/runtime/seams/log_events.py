"""Events of fast-agent's own log."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.runtime.fast_agent_log import write

if TYPE_CHECKING:
    from collections.abc import Callable

    from fast_agent.core.logging.logger import Logger


def event(original: Callable[..., None], _: type[Logger]) -> Callable[..., None]:
    """Write fast-agent's log events to the gateway's log at once; its own logging is off."""

    @wraps(original)
    def event(  # noqa: PLR0913, PLR0917  fast-agent's own parameters
        self: Logger, etype: str, ename: str | None, message: str, context: object, data: dict[str, Any]
    ) -> None:
        del context
        write(self.namespace, etype, ename, message, data)

    return event
