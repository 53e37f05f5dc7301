"""OpenRouter's models. Their limits are read from OpenRouter's model list, in a task of its own.

fast-agent reads the list for each new LLM object, so in every call, blocks the event loop for up to 10 s, and tries
again after each failure.
"""

from __future__ import annotations

import hashlib
import logging
import time
from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.runtime.compat.requirements import check_names
from pallas_gateway.runtime.llm.client_cache import is_callers_own
from pallas_gateway.tasks import TaskOwner

if TYPE_CHECKING:
    from pallas_gateway.runtime.compat.requirements import ReliedOn

_LOOKUP = "fast_agent.llm.openrouter_model_lookup"
RELIED_ON: ReliedOn = (
    ("fast_agent.llm.provider.openai.llm_openrouter:OpenRouterLLM", "_ensure_model_metadata", ("self", "model_name")),
    (_LOOKUP, "lookup_openrouter_models", ("api_key", "base_url")),
    (_LOOKUP, "register_runtime_openrouter_models", ("result",)),
)
READ_AGAIN_SECONDS = 300.0
"""Period between two requests of a list; fast-agent's is the same, but only after a success."""
_log = logging.getLogger("pallas.runtime")
_lookups = TaskOwner()
_read: dict[tuple[str, str], float] = {}
"""Time of the last request of each list, by the address and the hash of the key."""


def prepare(llm_class: type[Any]) -> None:
    """Repair fast-agent's class for OpenRouter; safe to call again."""
    original = getattr(llm_class, "_ensure_model_metadata", None)
    if llm_class.__name__ != "OpenRouterLLM" or original is None or hasattr(original, "__wrapped__"):
        return
    check_names(RELIED_ON)

    @wraps(original)
    def ensure_model_metadata(self: Any, model_name: str | None) -> None:
        from fast_agent.core.exceptions import ProviderKeyError  # noqa: PLC0415  not before an LLM is used
        from fast_agent.llm.model_database import ModelDatabase  # noqa: PLC0415

        if not model_name or ModelDatabase.get_model_params(model_name) is not None:
            return
        try:
            key, url = self._api_key(), self._base_url()
        except ProviderKeyError:
            return
        if not is_callers_own({"key": key}) and _is_due(key, url):
            _lookups.spawn(_look_up(key, url), name="read OpenRouter's model list", report=True)

    llm_class._ensure_model_metadata = ensure_model_metadata


async def models_known() -> None:
    """Wait until no model list is being read."""
    await _lookups.wait_until_idle()


async def close() -> None:
    """Stop reading."""
    await _lookups.cancel_all()
    _read.clear()


def _is_due(key: str, url: str) -> bool:
    name, now = (url, hashlib.sha256(key.encode()).hexdigest()), time.monotonic()
    if now - _read.get(name, -READ_AGAIN_SECONDS) < READ_AGAIN_SECONDS:
        return False
    _read[name] = now
    return True


async def _look_up(key: str, url: str) -> None:
    from fast_agent.llm import openrouter_model_lookup  # noqa: PLC0415  not before an LLM is used

    result = await openrouter_model_lookup.lookup_openrouter_models(api_key=key, base_url=url)
    if result.error is not None:
        _log.warning("OpenRouter model list not read", extra={"why": result.error})
    openrouter_model_lookup.register_runtime_openrouter_models(result)
