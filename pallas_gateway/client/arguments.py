"""Arguments of several commands, and the files that go along with a message.

Those that cannot be used are reported in one line instead of a screen about every option.
"""

from __future__ import annotations

import base64
import mimetypes
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from pallas_gateway.calls.image_bytes import image_type_of, why_not
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


class CommandError(GatewayError):
    """A command cannot do what it was asked to; the exit code is 1."""

    reason = "not_done"


def message_text(argument: str, *, has_images: bool) -> str:
    """Return the message of a command's argument; `-` reads standard input.

    Raises:
        CommandError: it is empty, and there are no images.
    """
    text = sys.stdin.read().removesuffix("\n") if argument == "-" else argument  # `echo` and editors end with a newline
    if not text.strip() and not has_images:
        raise CommandError("The message is empty, nothing was sent.")
    return text


_PDF = "application/pdf"
_LONGEST_NAME = 200


def image_of(path: Path) -> dict[str, str]:
    """An image or a PDF as the message tool takes it; `mime_type` by its bytes, else by the file's name.

    Raises:
        UsageError: it cannot be read, or is neither.
    """
    data = read(path)
    mime_type = image_type_of(data) or mimetypes.guess_type(path.name)[0] or ""
    if not mime_type.startswith("image/") and mime_type != _PDF:
        raise UsageError(f"{path}: not a known image type; send a PNG, JPEG, WebP or GIF file, or a PDF.")
    if (why := why_not(mime_type, data)) is not None:
        raise UsageError(f"{path}: the file {why}.")
    name = {"name": _sent_name(path)} if mime_type == _PDF else {}
    return {"data": base64.b64encode(data).decode(), "mime_type": mime_type, **name}


def _sent_name(path: Path) -> str:
    """Return the name of a file as the gateway takes it: text on one line, the end of a long one."""
    return re.sub(r"[\x00-\x1f\x7f]", " ", path.name.encode("utf-8", "replace").decode())[-_LONGEST_NAME:]


def read(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
