"""`/metrics`: the exposition Prometheus scrapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from starlette.requests import Request


def exposition(registry: CollectorRegistry, request: Request) -> Response:
    """The metrics as text 0.0.4, or in the format the scraper's `Accept` asks for."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"Content-Type": content_type})
