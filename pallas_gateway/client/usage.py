"""Arguments of several commands.

Those that cannot be used are reported in one line instead of a screen about every option.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pallas_gateway.errors import GatewayError

AnswersOption = Annotated[
    list[str] | None,
    typer.Option("--answer", help="FIELD=VALUE for forms of the agent, by key or title; may be repeated."),
]
ApproveOption = Annotated[
    list[str] | None, typer.Option("--approve", help="Approve tools: a glob over SERVER/TOOL; may be repeated.")
]
NoAskOption = Annotated[bool, typer.Option("--no-ask", help="Decline what the agent asks, ask nothing.")]


class UsageError(GatewayError):
    """An argument names something that does not exist or is of the wrong kind; the exit code is 2."""

    reason = "bad_usage"
    exit_code = 2


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
