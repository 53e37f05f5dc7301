"""What is known and decided about models: names, capabilities, vision."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fast_agent import FastAgent
from fast_agent.config import Settings
from fast_agent.core.agent_app import AgentApp
from fast_agent.llm.model_database import ModelDatabase, ModelParameters
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider

from pallas_gateway.config.model.agents import ModelCapabilities
from pallas_gateway.runtime.protocols import ModelFacts
from pallas_gateway.runtime.scope import CallScope, entered
from pallas_gateway.runtime.settings.declared_models import RuntimeModels, declared_models, model_facts, model_name

PNG = "image/png"
NEW = "generic.never-heard-of-it"
SEEING, BLIND = ModelCapabilities(vision=True), ModelCapabilities(vision=False)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to make agents in, and fast-agent's table of models as a gateway has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ModelDatabase, "_RUNTIME_MODEL_PARAMS", RuntimeModels())


type Decorate = Callable[[FastAgent], Any]


def program(*decorators: Decorate) -> FastAgent:
    fast = FastAgent("program", parse_cli_args=False)

    async def agent() -> None: ...

    for decorate in decorators:
        decorate(fast)(agent)
    return fast


def in_scope(
    capabilities: ModelCapabilities | None, model: str | None = NEW, fast: FastAgent | None = None
) -> AbstractContextManager[None]:
    """Return the scope of an agent with a default model and these capabilities."""
    models = declared_models(fast or program(), Settings(default_model=model), capabilities)
    return entered(CallScope(models=models))


def with_model(model: str | None, *, name: str = "agent") -> Decorate:
    return lambda fast: fast.agent(name=name, model=model)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("passthrough", "passthrough"),
        ("openai.gpt-x", "gpt-x"),
        ("openrouter.vendor/model-1.5:free", "vendor/model-1.5:free"),
        ("generic.a.b", "a.b"),
        ("", ""),
    ],
)
def test_a_models_name_is_what_follows_its_provider(spec: str, name: str) -> None:
    assert model_name(spec) == name


@pytest.mark.parametrize(("capabilities", "vision"), [(SEEING, True), (BLIND, False)])
def test_an_unknown_model_is_as_declared(capabilities: ModelCapabilities, vision: bool) -> None:
    with in_scope(capabilities):
        params = ModelDatabase.get_model_params(model_name(NEW))
        assert params is not None
        assert (params.context_window, params.max_output_tokens) == (131072, 16384)
        assert ModelDatabase.supports_mime(model_name(NEW), PNG) is vision


@pytest.mark.parametrize("spec", [NEW, f"openai.{model_name(NEW)}"], ids=["the same provider", "another provider"])
def test_each_agent_finds_its_own_declaration_of_a_model(spec: str) -> None:
    large = ModelCapabilities(vision=True, context_window=9000, max_output_tokens=900)
    small = ModelCapabilities(context_window=8000, max_output_tokens=500)
    for capabilities, model in ((large, NEW), (small, spec), (large, NEW)):
        with in_scope(capabilities, model):
            found = ModelFactory.resolve_model_spec(model).build_model_info()
            assert found is not None
            assert (found.context_window, found.max_output_tokens, found.supports_vision) == (
                capabilities.context_window,
                capabilities.max_output_tokens,
                capabilities.vision,
            )
    with in_scope(None):
        assert not ModelFactory.resolve_model_spec(NEW).model_params
        assert not model_facts(app(served=model_name(NEW)), "served", None).vision


def test_the_models_that_agents_name_themselves_are_declared_too() -> None:
    fast = program(with_model(NEW), with_model(None, name="default-model"))
    with in_scope(SEEING, "passthrough", fast):
        assert ModelDatabase.supports_mime(model_name(NEW), PNG)


def test_a_model_that_fast_agent_ships_stays_as_it_knows_it() -> None:
    before = ModelDatabase.get_model_params("gpt-4o")
    with in_scope(ModelCapabilities(vision=True, context_window=1), "openai.gpt-4o"):
        assert ModelDatabase.get_model_params("gpt-4o") == before


def test_a_model_that_a_provider_has_listed_is_as_listed_without_a_declaration() -> None:
    listed = ModelParameters(context_window=7, max_output_tokens=7, tokenizes=[])
    ModelDatabase.register_runtime_model_params(model_name(NEW), listed)
    with in_scope(None):
        assert ModelDatabase.get_model_params(model_name(NEW)) == listed
    with in_scope(SEEING):
        assert ModelDatabase.supports_mime(model_name(NEW), PNG)


def app(provider: Provider = Provider.OPENAI, /, **models: str | None) -> AgentApp:
    """Agents by name with the model each uses; None for a workflow, which has none of its own."""
    agents = {
        name: SimpleNamespace(llm=SimpleNamespace(model_name=model, provider=provider) if model is not None else None)
        for name, model in models.items()
    }
    return cast("AgentApp", SimpleNamespace(registered_agents=lambda: agents))


GPT_4O = ModelFacts(
    "gpt-4o",
    frozenset({"image/png", "image/jpeg", "image/webp"}),
    max_output_tokens=16384,
    context_window=128000,
    documents=True,
)


@pytest.mark.parametrize(
    ("models", "name", "vision"),
    [
        ({"served": "gpt-4o"}, "gpt-4o", True),
        ({"served": "passthrough"}, "passthrough", False),
        ({"served": "never-heard-of-it"}, "never-heard-of-it", False),
        ({"helper": "gpt-4o", "served": "passthrough"}, "passthrough", False),
        ({"part": "gpt-4o", "other": "passthrough", "served": None}, "gpt-4o", True),
        ({"served": None}, "unknown", False),
        ({"served": ""}, "unknown", False),
    ],
)
def test_the_model_is_the_served_agents_or_the_first_of_its_parts(
    models: dict[str, str | None], name: str, vision: bool
) -> None:
    facts = model_facts(app(**models), "served", None)
    assert (facts.name, facts.vision) == (name, vision)


def test_the_types_of_images_are_those_that_fast_agent_passes_on() -> None:
    assert model_facts(app(served="gpt-4o"), "served", SEEING) == GPT_4O


def test_bedrock_is_sent_no_images_and_no_documents() -> None:
    assert not model_facts(app(Provider.BEDROCK, served="gpt-4o"), "served", SEEING).attachment_types


def test_documents_are_those_of_fast_agent_unless_it_does_not_know_the_model_or_they_are_declared_away() -> None:
    reading, closed = ModelCapabilities(documents=True), ModelCapabilities(documents=False)
    assert not model_facts(app(served="gpt-4o"), "served", closed).documents
    assert not model_facts(app(served="glm-5.2"), "served", reading).documents
    for declared, takes in ((None, False), (SEEING, False), (closed, False), (reading, True)):
        with in_scope(declared):
            assert model_facts(app(served=model_name(NEW)), "served", declared).documents is takes


def test_declared_blindness_wins_over_what_fast_agent_knows() -> None:
    assert model_facts(app(served="gpt-4o"), "served", BLIND) == replace(GPT_4O, image_types=frozenset())


def test_vision_declared_for_a_model_without_it_does_not_make_it_see() -> None:
    """fast-agent drops images for a model it knows as text-only, without a word; so none may get there."""
    with in_scope(SEEING, "generic.glm-5.2"):
        assert not model_facts(app(served="glm-5.2"), "served", SEEING).vision
