"""`/metrics`: the exposition for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from starlette.responses import Response

if TYPE_CHECKING:
    from prometheus_client.registry import Collector
    from starlette.requests import Request


def exposition(registry: Collector, request: Request) -> Response:
    """The metrics as text 0.0.4, or in the format of the scraper's `Accept`."""
    try:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # its parser fails on versions that are not numbers
        encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    return Response(encode(registry), headers={"Content-Type": content_type})
