"""Arguments that cannot be used, said in one line instead of a screen about every option."""

from __future__ import annotations

from pallas_gateway.errors import GatewayError


class UsageError(GatewayError):
    """An argument names something that is not there or is of the wrong kind; ends the process with 2."""

    reason = "bad_usage"


class NoMessageError(GatewayError):
    """There is nothing to say: a script whose input came up empty gets no answer, and 1."""

    reason = "no_message"


def refuse_empty(message: str, *, images: bool) -> None:
    """A message has to say something, unless it shows `images`.

    Raises:
        NoMessageError: it does not.
    """
    if not message.strip() and not images:
        raise NoMessageError("The message is empty, nothing was sent.")
