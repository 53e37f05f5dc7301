"""Files that go along with a message."""

from __future__ import annotations

import base64
import mimetypes
from typing import TYPE_CHECKING

from pallas_gateway.cli.usage import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def image_of(path: Path) -> dict[str, str]:
    """An image as the message tool takes it: `data` in base64, and `mime_type` by the file's name.

    Raises:
        UsageError: it cannot be read, or is no image by its name.
    """
    mime_type = mimetypes.guess_type(path.name)[0] or ""
    if not mime_type.startswith("image/"):
        raise UsageError(f"{path}: not a known image type; name it .png, .jpg, .webp or .gif.")
    return {"data": base64.b64encode(read(path)).decode(), "mime_type": mime_type}


def read(path: Path) -> bytes:
    """What is in a file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
