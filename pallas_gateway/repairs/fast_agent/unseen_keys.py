"""Keys of logins are in logs.

Symptom: a provider's key that is in no setting and no variable (it comes from a login, a keyring, a caller, or a file
of another library) is not known to the gateway. A provider or a library that repeats it in an error writes it into the
log and into the reason of the failure.

Reproduction: log in to `codexresponses`, and answer 401 with a message that holds the token.

Repair: what the methods of fast-agent return that read the credentials of a turn is hidden in the call that uses it.
Most of these credentials expire, so they are not hidden for longer.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, EachClass, Loaded
from pallas_gateway.telemetry.redaction import configured, hide_credentials_in_this_call

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
        if credentials and not (is_text and (credentials in _NO_KEYS or credentials in configured.forms)):
            hide_credentials_in_this_call({name: credentials})
        return credentials

    return read
