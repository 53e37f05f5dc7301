"""What is known and decided about models: names, capabilities, vision."""

from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fast_agent import FastAgent
from fast_agent.config import Settings
from fast_agent.core.agent_app import AgentApp
from fast_agent.llm.model_database import ModelDatabase
from fast_agent.llm.provider_types import Provider

from pallas_gateway.config.model.agents import ModelCapabilities
from pallas_gateway.runtime.protocols import ModelFacts
from pallas_gateway.runtime.settings.models import model_facts, model_name, register_unknown_models

PNG = "image/png"
NEW = "generic.never-heard-of-it"
SEEING, BLIND = ModelCapabilities(vision=True), ModelCapabilities(vision=False)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """An empty folder to make agents in; models registered by a test are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    yield
    ModelDatabase.clear_runtime_model_params()


type Decorate = Callable[[FastAgent], Any]


def program(*decorators: Decorate) -> FastAgent:
    fast = FastAgent("program", parse_cli_args=False)

    async def agent() -> None: ...

    for decorate in decorators:
        decorate(fast)(agent)
    return fast


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
def test_an_unknown_model_is_registered_as_declared(capabilities: ModelCapabilities, vision: bool) -> None:
    register_unknown_models(program(), Settings(default_model=NEW), capabilities)

    params = ModelDatabase.get_model_params(model_name(NEW))
    assert params is not None
    assert (params.context_window, params.max_output_tokens) == (131072, 16384)
    assert ModelDatabase.supports_mime(model_name(NEW), PNG) is vision


def test_the_declared_sizes_are_taken() -> None:
    declared = ModelCapabilities(context_window=8000, max_output_tokens=500)
    register_unknown_models(program(), Settings(default_model=NEW), declared)
    params = ModelDatabase.get_model_params(model_name(NEW))
    assert params is not None
    assert (params.context_window, params.max_output_tokens) == (8000, 500)


def test_the_models_that_agents_name_themselves_are_registered_too() -> None:
    fast = program(with_model(NEW), with_model(None, name="default-model"))
    register_unknown_models(fast, Settings(default_model="passthrough"), SEEING)
    assert ModelDatabase.supports_mime(model_name(NEW), PNG)


def test_a_known_model_stays_as_fast_agent_knows_it() -> None:
    before = ModelDatabase.get_model_params("gpt-4o")
    declared = ModelCapabilities(vision=True, context_window=1)
    register_unknown_models(program(), Settings(default_model="openai.gpt-4o"), declared)
    assert ModelDatabase.get_model_params("gpt-4o") == before


def test_without_a_declaration_nothing_is_registered() -> None:
    register_unknown_models(program(), Settings(default_model=NEW), None)
    assert ModelDatabase.get_model_params(model_name(NEW)) is None


def app(provider: Provider = Provider.OPENAI, /, **models: str | None) -> AgentApp:
    """Agents by name with the model each uses; None for a workflow, which has none of its own."""
    agents = {
        name: SimpleNamespace(llm=SimpleNamespace(model_name=model, provider=provider) if model is not None else None)
        for name, model in models.items()
    }
    return cast("AgentApp", SimpleNamespace(registered_agents=lambda: agents))


GPT_4O = ModelFacts("gpt-4o", frozenset({"image/png", "image/jpeg", "image/webp"}), max_output_tokens=16384)


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


def test_bedrock_is_sent_no_images() -> None:
    assert model_facts(app(Provider.BEDROCK, served="gpt-4o"), "served", SEEING).image_types == frozenset()


def test_declared_blindness_wins_over_what_fast_agent_knows() -> None:
    assert model_facts(app(served="gpt-4o"), "served", BLIND) == replace(GPT_4O, image_types=frozenset())


def test_vision_declared_for_a_model_without_it_does_not_make_it_see() -> None:
    """fast-agent drops images for a model it knows as text-only, without a word; so none may get there."""
    register_unknown_models(program(), Settings(default_model="generic.glm-5.2"), SEEING)
    assert not model_facts(app(served="glm-5.2"), "served", SEEING).vision


def test_a_model_first_declared_blind_and_then_seeing_sees() -> None:
    for capabilities in (BLIND, SEEING):
        register_unknown_models(program(), Settings(default_model=NEW), capabilities)
    assert model_facts(app(served=model_name(NEW)), "served", SEEING).vision
    assert not model_facts(app(served=model_name(NEW)), "served", BLIND).vision
