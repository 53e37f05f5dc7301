"""Anthropic's models on Google's Vertex AI. Installed when an agent first uses one."""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.runtime.compat.requirements import check_names
from pallas_gateway.runtime.llm.identities import google_identity

if TYPE_CHECKING:
    from pallas_gateway.runtime.compat.requirements import ReliedOn

_PACKAGE = "fast_agent.llm.provider.anthropic"
_LLM = f"{_PACKAGE}.llm_anthropic_vertex:AnthropicVertexLLM"
RELIED_ON: ReliedOn = (
    (_LLM, "_prepare_anthropic_client", ("self", "model")),
    (_LLM, "_initialize_anthropic_client", ("self",)),
    (_LLM, "validate_provider_credentials", ("self",)),
    (f"{_PACKAGE}.llm_anthropic_vertex", "detect_google_adc", ()),
    (f"{_PACKAGE}.vertex_config", "detect_google_adc", ()),
    (f"{_PACKAGE}.vertex_config", "GoogleAdcStatus", ()),
)


def prepare(llm_class: type[Any]) -> None:
    """Repair fast-agent's class; safe to call again."""
    if llm_class.__name__ != "AnthropicVertexLLM" or hasattr(llm_class._prepare_anthropic_client, "__wrapped__"):
        return
    check_names(RELIED_ON)
    config = sys.modules[f"{_PACKAGE}.vertex_config"]

    def detect_google_adc() -> Any:
        identity = google_identity()  # fast-agent loads it twice in each turn
        return config.GoogleAdcStatus(available=True, project_id=identity.project, credentials=identity.credentials)

    for module in (config, sys.modules[llm_class.__module__]):
        module.detect_google_adc = detect_google_adc  # type: ignore[attr-defined]
    original = llm_class._prepare_anthropic_client

    @wraps(original)
    async def logged_in(self: Any, model: str) -> None:
        await google_identity().ready()
        await original(self, model)

    llm_class._prepare_anthropic_client = logged_in
    llm_class.validate_provider_credentials = _validate


def _validate(self: Any) -> None:
    """Check project and credentials by making a client; the inherited method requires a key."""
    self._initialize_anthropic_client()
