"""What the gateway knows and decides about models: their capabilities, and those it does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fast_agent.llm.model_database import ModelDatabase, ModelParameters

from pallas_gateway.runtime.ports import ModelFacts

if TYPE_CHECKING:
    from fast_agent.config import Settings
    from fast_agent.core.agent_app import AgentApp
    from fast_agent.core.fastagent import FastAgent

    from pallas_gateway.config.schema import ModelCapabilities

_IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff", "image/heic")


def register_unknown_models(fast: FastAgent, settings: Settings, capabilities: ModelCapabilities | None) -> None:
    """Tell fast-agent about the models of a module that it does not know, from what the project declares."""
    if capabilities is None:
        return
    specs = {settings.default_model, *(data["config"].model for data in fast.agents.values())}
    for name in {model_name(spec) for spec in specs if spec}:
        _register_unknown_model(name, capabilities)


def _register_unknown_model(name: str, capabilities: ModelCapabilities) -> None:
    is_known = ModelDatabase.get_model_params(name) is not None
    # Another agent may have declared the same model without vision; fast-agent would then drop images without a word.
    if is_known and (not capabilities.vision or ModelDatabase.supports_mime(name, "image/png")):
        return
    tokenizes = ModelDatabase.QWEN_MULTIMODAL if capabilities.vision else ModelDatabase.TEXT_ONLY
    parameters = ModelParameters(
        context_window=capabilities.context_window,
        max_output_tokens=capabilities.max_output_tokens,
        tokenizes=tokenizes,
    )
    ModelDatabase.register_runtime_model_params(name, parameters)


def model_name(spec: str) -> str:
    """The part after the provider: `openai.gpt-x` → `gpt-x`; a spec without a provider is the name itself."""
    return spec.split(".", 1)[1] if "." in spec else spec


def model_facts(app: AgentApp, served: str, capabilities: ModelCapabilities | None) -> ModelFacts:
    """The model the served agent (for a workflow: the first agent with a model) really uses."""
    agents = app.registered_agents()
    ordered = [agents[served], *(agent for name, agent in agents.items() if name != served)]
    llm = next((llm for agent in ordered if (llm := getattr(agent, "llm", None)) is not None), None)
    name = (llm.model_name if llm is not None else None) or "unknown"
    is_known = llm is None or capabilities is not None or ModelDatabase.get_model_params(name) is not None
    if capabilities is not None and not capabilities.vision:
        return ModelFacts(name, is_known=is_known)
    # What fast-agent does not pass on it drops without a word, whatever was declared.
    image_types = frozenset(kind for kind in _IMAGE_TYPES if ModelDatabase.supports_mime(name, kind))
    return ModelFacts(name, image_types, is_known)
