"""Capabilities of models, known to fast-agent or declared by the project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, override

from fast_agent.core.model_resolution import resolve_model_spec
from fast_agent.llm.model_database import ModelDatabase, ModelParameters
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider

from pallas_gateway.calls.call import PDF
from pallas_gateway.changes.change import Fault
from pallas_gateway.runtime.protocols import ModelFacts
from pallas_gateway.runtime.scope import current_scope
from pallas_gateway.runtime.settings.model_names import near_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fast_agent.config import Settings
    from fast_agent.core.agent_app import AgentApp
    from fast_agent.core.fastagent import FastAgent

    from pallas_gateway.config.model.agents import ModelCapabilities

_IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff", "image/heic")
_SENT_TEXT_ONLY = frozenset({Provider.BEDROCK})
"""Providers to which fast-agent sends only the text of a message, without an error."""
_SENT_NO_LIMIT = frozenset({Provider.GENERIC, Provider.GOOGLE_OAI, Provider.TENSORZERO})
"""Providers to which fast-agent sends no limit of its own for answers, so a model of one may answer without end."""
FAULTS = (
    Fault(
        title="Bedrock is sent no images and no documents",
        text="""\
Symptom: images and PDFs are left out without an error, also with `vision: true`.

Repair: such a call is refused with `images_unsupported`.
""",
        library="bedrock",
        gone_when="`BedrockConverter.convert_to_bedrock` converts `ImageContent` and `EmbeddedResource`",
        test="tests/e2e/test_providers.py",
    ),
)


class RuntimeModels(dict[str, ModelParameters]):
    """fast-agent's table of models that it does not ship, one for the process; an agent finds those that it declares.

    Two agents may declare one name differently, also of models at two providers.
    """

    @override
    def __contains__(self, name: object) -> bool:
        return name in current_scope.get().models or super().__contains__(name)

    @override
    def get(self, name: str, default: Any = None, /) -> Any:
        return current_scope.get().models.get(name) or super().get(name, default)


def declared_models(
    fast: FastAgent, settings: Settings, capabilities: ModelCapabilities | None, models: Iterable[str] = ()
) -> Mapping[str, ModelParameters]:
    """Return the models of a module with the capabilities that the project declares, by fast-agent's key.

    They count for models that fast-agent does not ship.

    Args:
        fast: of the module.
        settings: contain the default model.
        capabilities: declared for the agent.
        models: further models that its callers may choose.

    Raises:
        ModelConfigError: fast-agent cannot parse one of `models`.
    """
    others = [ModelFactory.resolve_model_spec(spec).wire_model_name for spec in models]
    if capabilities is None:
        return {}
    specs = {settings.default_model, *(data["config"].model for data in fast.agents.values())}
    names = {model_name(spec) for spec in specs if spec}
    names |= {name for name in others if ModelDatabase.get_model_params(name) is None}
    parameters = ModelParameters(
        context_window=capabilities.context_window,
        max_output_tokens=capabilities.max_output_tokens,
        tokenizes=[
            *(ModelDatabase.QWEN_MULTIMODAL if capabilities.vision else ModelDatabase.TEXT_ONLY),
            *([PDF] if capabilities.documents else ()),
        ],
    )
    return {ModelDatabase.normalize_model_name(name): parameters for name in names}


def limit_answers(fast: FastAgent, settings: Settings, capabilities: ModelCapabilities | None) -> None:
    """Send the declared `max_output_tokens` to providers that would get no limit.

    Only a declared one: servers such as vLLM refuse a request whose prompt and limit exceed the context together.
    """
    if capabilities is None or "max_output_tokens" not in capabilities.model_fields_set:
        return
    for config in (data["config"] for data in fast.agents.values()):
        params, references = config.default_request_params, settings.model_references
        spec = resolve_model_spec(None, config.model, settings.default_model, model_references=references).model
        if spec is None or params is None or params.max_tokens is not None:
            continue
        if ModelFactory.resolve_model_spec(spec).provider in _SENT_NO_LIMIT:
            params.max_tokens = capabilities.max_output_tokens


def model_name(spec: str) -> str:
    """The part of a model's spec after the provider: `gpt-x` of `openai.gpt-x` and of `gpt-x`."""
    return spec.split(".", 1)[1] if "." in spec else spec


def model_facts(app: AgentApp, served: str, capabilities: ModelCapabilities | None) -> ModelFacts:
    """The model that the served agent uses; for a workflow, that of the first agent with a model."""
    llm = _llm_of(app, served)
    name = (llm.model_name if llm is not None else None) or "unknown"
    is_known = llm is None or capabilities is not None or ModelDatabase.get_model_params(name) is not None
    says_most = capabilities is not None and "max_output_tokens" in capabilities.model_fields_set
    most = capabilities.max_output_tokens if capabilities and says_most else ModelDatabase.get_max_output_tokens(name)
    takes_images = capabilities is None or capabilities.vision
    takes_images = takes_images and (llm is None or llm.provider not in _SENT_TEXT_ONLY)
    images = _image_types(name) if takes_images else frozenset()
    documents = (capabilities is None or capabilities.documents is not False) and llm is not None
    documents = documents and _takes_documents(name, llm.provider)
    says_window = capabilities is not None and "context_window" in capabilities.model_fields_set
    window = capabilities.context_window if capabilities and says_window else ModelDatabase.get_context_window(name)
    return ModelFacts(name, images, is_known, most, None if is_known else near_model(name), window, documents)


def _llm_of(app: AgentApp, served: str) -> Any:
    agents = app.registered_agents()
    ordered = [agents[served], *(agent for name, agent in agents.items() if name != served)]
    return next((llm for agent in ordered if (llm := getattr(agent, "llm", None)) is not None), None)


def model_served(app: AgentApp, served: str) -> set[tuple[str, str]]:
    """The model of `model_facts` as (provider, name at the provider); empty without one."""
    llm = _llm_of(app, served)
    return {(llm.provider.config_name, llm.model_name)} if llm is not None and llm.model_name else set()


def models_used(app: AgentApp) -> set[tuple[str, str]]:
    """Every model that an agent of the module uses, as (provider, name at the provider)."""
    llms = (getattr(agent, "llm", None) for agent in app.registered_agents().values())
    used = {(llm.provider, llm.model_name) for llm in llms if llm is not None and llm.model_name}
    return {(provider.config_name, name) for provider, name in used}


def provider_and_model(spec: str) -> tuple[str, str]:
    """A model that a project names, as (provider, name at the provider)."""
    found = ModelFactory.resolve_model_spec(spec)
    return found.provider.config_name, found.wire_model_name


def facts_of(spec: str) -> ModelFacts:
    """Facts of a model that fast-agent knows, or that the agent of the current scope declares."""
    found = ModelFactory.resolve_model_spec(spec)
    name = found.wire_model_name
    is_known = ModelDatabase.get_model_params(name) is not None
    images = frozenset() if found.provider in _SENT_TEXT_ONLY else _image_types(name)
    window = ModelDatabase.get_context_window(name)
    most, documents = ModelDatabase.get_max_output_tokens(name), _takes_documents(name, found.provider)
    return ModelFacts(name, images, is_known, most, context_window=window, documents=documents)


def _takes_documents(model: str, provider: Provider) -> bool:
    """True if fast-agent passes documents on to the model; it drops others without a message."""
    if provider in _SENT_TEXT_ONLY:
        return False
    return ModelDatabase.supports_mime(model, PDF, provider=provider, resource_source="embedded")


def _image_types(model: str) -> frozenset[str]:
    """The types of images that fast-agent passes on to the model; it drops others without a message."""
    return frozenset(kind for kind in _IMAGE_TYPES if ModelDatabase.supports_mime(model, kind))
