"""Read the header `Accept`, which names the media types that a client accepts (RFC 9110, section 12.5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request


def weights(request: Request) -> dict[str, float]:
    """Return the media ranges of the header in lower case, with their weights from 0 to 1; 0 if one is malformed."""
    found: dict[str, float] = {}
    for part in request.headers.get("accept", "").split(","):
        name, *parameters = (one.strip().lower() for one in part.split(";"))
        given = next((one[2:] for one in parameters if one.startswith("q=")), "1")
        try:
            weight = float(given)
        except ValueError:
            weight = 0.0
        if name:
            found[name] = max(min(weight, 1.0) if weight > 0 else 0.0, found.get(name, 0.0))
    return found


def weight_of(ranges: dict[str, float], media_type: str) -> float:
    """Return the weight of a type: that of the most specific range that matches, 0 without one."""
    patterns = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
    return next((ranges[one] for one in patterns if one in ranges), 0.0)
