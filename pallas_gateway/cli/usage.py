"""Arguments that cannot be used, reported in one line instead of a screen about every option."""

from __future__ import annotations

import sys

from pallas_gateway.errors import GatewayError


class UsageError(GatewayError):
    """An argument names something that does not exist or is of the wrong kind; the exit code is 2."""

    reason = "bad_usage"


class NoMessageError(GatewayError):
    """The message is empty, such as from a script whose input was empty; the exit code is 1."""

    reason = "no_message"


def message_text(argument: str, *, has_images: bool) -> str:
    """Return the message of a command's argument; `-` reads standard input.

    Raises:
        NoMessageError: it is empty, and there are no images.
    """
    text = sys.stdin.read().removesuffix("\n") if argument == "-" else argument  # `echo` and editors end with a newline
    if not text.strip() and not has_images:
        raise NoMessageError("The message is empty, nothing was sent.")
    return text
