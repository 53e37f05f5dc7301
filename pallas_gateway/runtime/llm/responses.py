"""Repairs of fast-agent's classes for OpenAI's Responses API."""

from __future__ import annotations

from functools import wraps
from typing import Any

from pallas_gateway.runtime.compat.requirements import check_names

_OPEN_A_SOCKET = ("auto", "websocket")
_CLASSES = ("ResponsesLLM", "XAIResponsesLLM")


def prepare(llm_class: Any) -> None:
    """Use server-sent events by default; safe to call again.

    A WebSocket belongs to one instance, so each call would open one, with a TLS handshake.
    """
    if llm_class.__name__ not in _CLASSES:
        return
    from pallas_gateway.runtime.llm import websockets  # noqa: PLC0415  not before an LLM is used

    websockets.prepare()
    check_names(((llm_class, "_default_transport_setting", ("self",)),))
    original = llm_class._default_transport_setting
    if hasattr(original, "original"):
        return

    @wraps(original)
    def default_transport_setting(self: Any) -> str:
        chosen: str = original(self)
        return "sse" if chosen in _OPEN_A_SOCKET else chosen

    default_transport_setting.original = original  # type: ignore[attr-defined]
    llm_class._default_transport_setting = default_transport_setting
