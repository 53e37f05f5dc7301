"""The headers of responses: what a browser lets a page load and run, and what caches may store."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


def page_headers(sources: str, *more: str) -> dict[str, str]:
    """Return the headers of a page that loads and runs what `sources` allows, and nothing else.

    Args:
        sources: directives of Content Security Policy Level 3 (https://www.w3.org/TR/CSP3/), separated by semicolons.
        more: directives that stand last.
    """
    denied = ("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'")
    return {
        "Content-Security-Policy": "; ".join(("default-src 'none'", sources, *denied, *more)),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
    }


def this_style(style: str) -> str:
    """Return the directive that allows one element `style`, by its hash."""
    return f"style-src 'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"


class NotStored:
    """Forbids caches to store the responses of an app, which hold conversations of one caller."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamp(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, stamp)
