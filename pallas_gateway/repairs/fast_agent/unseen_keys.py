"""Keys of logins are in logs.

Symptom: a provider's key from a login, a keyring, a caller or another library's file is in logs and reasons, if the
provider repeats it in an error.

Repair: the credentials of a turn are hidden during the call.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, EachClass, Loaded
from pallas_gateway.telemetry import redaction

_PACKAGE = "fast_agent.llm"
CHANGE = Change(
    "unseen-keys",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_PACKAGE),
    replaces=(
        EachClass(_PACKAGE, "_api_key", ("self",), by="key"),
        EachClass(_PACKAGE, "_configured_api_key", ("self",), by="key"),
        EachClass(_PACKAGE, "_default_headers", ("self",), by="headers"),
    ),
    gone_when="fast-agent reports the credentials that it reads",
)
_NO_KEYS = frozenset({"ollama", "openresponses-local", "AzureCredential"})
"""Placeholders of fast-agent's."""


def key(original: Any, holder: Any) -> Any:
    """Hide a key."""
    del holder
    return _hidden(original, "api_key")


def headers(original: Any, holder: Any) -> Any:
    """Hide the secrets among headers."""
    del holder
    return _hidden(original, "headers")


def _hidden(original: Any, name: str) -> Any:
    @wraps(original)
    def read(self: Any) -> Any:
        credentials = original(self)
        is_text = isinstance(credentials, str)
        if credentials and not (is_text and (credentials in _NO_KEYS or credentials in redaction.configured.forms)):
            redaction.hide_credentials_in_this_call({name: credentials})
        return credentials

    return read
