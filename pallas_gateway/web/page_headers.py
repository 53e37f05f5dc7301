"""The headers of the gateway's pages: what a browser lets them load and run."""

from __future__ import annotations

import base64
import hashlib


def page_headers(sources: str) -> dict[str, str]:
    """Return the headers of a page that loads and runs what `sources` allows, and nothing else.

    Args:
        sources: directives of Content Security Policy Level 3 (https://www.w3.org/TR/CSP3/), separated by semicolons.
    """
    return {
        "Content-Security-Policy": f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
    }


def this_style(style: str) -> str:
    """Return the directive that allows one element `style`, by its hash."""
    return f"style-src 'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"
