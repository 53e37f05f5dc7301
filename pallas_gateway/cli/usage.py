"""Arguments that cannot be used, said in one line instead of a screen about every option."""

from __future__ import annotations

from pallas_gateway.errors import GatewayError


class UsageError(GatewayError):
    """An argument names something that is not there or is of the wrong kind; ends the process with 2."""

    reason = "bad_usage"
