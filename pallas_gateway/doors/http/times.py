"""Times in documents of HTTP APIs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime


def written(time: datetime, timespec: Literal["seconds", "milliseconds"] = "milliseconds") -> str:
    """Return a time of UTC by RFC 3339, such as `2026-11-24T15:00:00.000Z`."""
    return time.isoformat(timespec=timespec).replace("+00:00", "Z")
