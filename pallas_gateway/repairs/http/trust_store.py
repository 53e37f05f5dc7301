"""Each HTTP client reads the trust store.

Symptom: each new client reads them for 20 to 40 ms on the event loop; fast-agent makes one for each connection.

Repair: clients of the same settings share one context.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import REPAIR, Change, Name

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

# Each has the function under its own name; the clients of providers use that of the package.
_READERS = ("httpx", "httpx._transports.default", "httpx2", "httpx2._transports.default")
CHANGE = Change(
    "trust-store",
    REPAIR,
    ("httpx2", "httpx"),
    seen_in="2.16.2",
    replaces=tuple(Name(f"{module}:create_ssl_context", ("verify", "cert", "trust_env")) for module in _READERS),
    gone_when="httpx and httpx2 share the context of clients with the same settings",
)
_shared: dict[tuple[object, ...], ssl.SSLContext] = {}


def changed(original: Callable[..., ssl.SSLContext], holder: object) -> Callable[..., ssl.SSLContext]:
    """Return the function that makes a context, a shared one for the default settings."""
    del holder

    def create_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is not True or cert is not None:
            return original(verify=verify, cert=cert, trust_env=trust_env)
        key = (original, trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if key not in _shared:
            _shared[key] = original(verify=True, cert=None, trust_env=trust_env)
        return _shared[key]

    return create_ssl_context
