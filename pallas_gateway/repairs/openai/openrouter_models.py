"""OpenRouter's model list blocks the event loop.

Symptom: with a model that fast-agent does not know, each call reads the list for up to 10 s.

Repair: the list is read in a task, once in 300 s for each address and key, never with a caller's own token. An agent's
start waits for it.
"""

from __future__ import annotations

import hashlib
import logging
import time
from functools import wraps
from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name
from pallas_gateway.tasks import TaskOwner

_MODULE = "fast_agent.llm.provider.openai.llm_openrouter"
_LOOKUP = "fast_agent.llm.openrouter_model_lookup"
CHANGE = Change(
    "openrouter-models",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(Name(f"{_MODULE}:OpenRouterLLM._ensure_model_metadata", ("self", "model_name")),),
    relies_on=(
        Name(f"{_LOOKUP}:lookup_openrouter_models", ("api_key", "base_url")),
        Name(f"{_LOOKUP}:register_runtime_openrouter_models", ("result",)),
        Name("fast_agent.mcp.auth.context:request_bearer_token"),
    ),
    gone_when="`OpenRouterLLM._ensure_model_metadata` does not block and remembers failures",
)
READ_AGAIN_SECONDS = 300.0
"""Period between two requests of a list; fast-agent's is the same, but only after a success."""
_log = logging.getLogger("pallas.runtime")
_lookups = TaskOwner()
_read: dict[tuple[str, str], float] = {}
"""Time of the last request of each list, by the address and the hash of the key."""


def changed(original: Any, holder: Any) -> Any:
    """Read the list in a task."""
    del holder

    @wraps(original)
    def ensure_model_metadata(self: Any, model_name: str | None) -> None:
        from fast_agent.core.exceptions import ProviderKeyError  # noqa: PLC0415  not before an LLM is used
        from fast_agent.llm.model_database import ModelDatabase  # noqa: PLC0415
        from fast_agent.mcp.auth.context import request_bearer_token  # noqa: PLC0415

        if not model_name or ModelDatabase.get_model_params(model_name) is not None:
            return
        try:
            key, url = self._api_key(), self._base_url()
        except ProviderKeyError:
            return
        is_callers_own = (token := request_bearer_token.get()) and token in key
        if not is_callers_own and _is_due(key, url):
            _lookups.spawn(_look_up(key, url), name="read OpenRouter's model list", report=True)

    return ensure_model_metadata


async def settled() -> None:
    """Wait until no list is being read."""
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
        # Models that fast-agent does not know have its default limits.
        _log.warning("OpenRouter model list not read", extra={"why": result.error})
    openrouter_model_lookup.register_runtime_openrouter_models(result)
