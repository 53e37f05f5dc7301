"""The headers of the gateway's pages: what a browser lets them load and run."""

from __future__ import annotations

import base64
import hashlib


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
