"""Hides keys of providers that come from a login, a keyring, or a file of another library."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.config.loading.secret_values import secret_values
from pallas_gateway.telemetry.redaction import hide_in_this_call

if TYPE_CHECKING:
    from collections.abc import Callable

_READERS = {"_api_key": "api_key", "_configured_api_key": "api_key", "_default_headers": "headers"}
"""Methods that read the credentials of a turn, and a name for what they return. Most of those credentials expire, so
they are hidden in the call that uses them."""
_NO_KEYS = frozenset({"ollama", "openresponses-local", "AzureCredential"})
"""Placeholders of fast-agent's."""


def prepare(llm_class: type[Any]) -> None:
    """Hide the keys that a class of fast-agent reads; safe to call again."""
    for method, name in _READERS.items():
        original = vars(llm_class).get(method)
        if original is not None and not hasattr(original, "__wrapped__"):
            setattr(llm_class, method, _hidden(original, name))


def _hidden(original: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    @wraps(original)
    def read(self: Any) -> Any:
        credentials = original(self)
        if credentials and not (isinstance(credentials, str) and credentials in _NO_KEYS):
            for secret in secret_values({name: credentials}):
                hide_in_this_call(secret)
        return credentials

    return read
