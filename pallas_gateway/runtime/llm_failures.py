"""Reasons of failed LLM requests: the provider's own message, or the cause of a failed connection.

The clients of providers put the body of an error into their exceptions as Python prints it, and report a connection
that was refused as "Request timed out.". What happened is in the body, and in the causes of the exception.
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_BODIES = ("body", "details")
"""Attributes with the decoded body of an answer, of OpenAI's and Anthropic's exceptions, and of Google's."""
_MESSAGES = ("message", "error", "detail", "errors")
_MOST_CAUSES = 50
_REFUSED = f"[Errno {errno.ECONNREFUSED}]"  # several addresses were tried, and asyncio keeps only the text of each


def explain_failures_of(module: ModuleType) -> None:
    """Have a provider's module of fast-agent report failures in these words; safe to call again."""
    original: Any = getattr(module, "build_stream_failure_response", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def explained(provider: Any, error: Any, model_name: str) -> Any:
        if (words := provider_words(error) or connection_words(error)) is not None:
            error.message = words
        return original(provider, error, model_name)

    module.build_stream_failure_response = explained  # type: ignore[attr-defined]


def provider_words(error: BaseException) -> str | None:
    """The message in the body of an error answer; None if there was no such answer, or not as JSON."""
    for cause in _causes(error):
        for name in _BODIES:
            body = getattr(cause, name, None)
            if isinstance(body, (dict, list, str)) and body:
                return _message_in(body) or json.dumps(body, default=str)
    return None


def connection_words(error: BaseException) -> str | None:
    """Return the cause of a failed connection in a few words; None if the error has another cause."""
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return "its provider cannot be reached: TLS error"
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return "its provider cannot be reached: host name not found"
    if any(isinstance(cause, ConnectionRefusedError) or _REFUSED in str(cause) for cause in causes):
        return "its provider cannot be reached: connection refused"
    return None


def _message_in(body: Any) -> str | None:
    if isinstance(body, str):
        return body.strip() or None
    if isinstance(body, list):
        return _message_in(body[0]) if body else None
    found = (_message_in(body[name]) for name in _MESSAGES if name in body) if isinstance(body, dict) else ()
    return next(filter(None, found), None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, what it was raised from, and the members of groups."""
    waiting: list[BaseException | None] = [error]
    seen: list[BaseException] = []
    while waiting and len(seen) < _MOST_CAUSES:
        cause = waiting.pop(0)
        if cause is None or cause in seen:
            continue
        seen.append(cause)
        yield cause
        waiting += [cause.__cause__ or cause.__context__, *getattr(cause, "exceptions", ())]
