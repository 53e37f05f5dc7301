"""What is known and decided about models: names, capabilities, vision, the limit of iterations."""

from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fast_agent import FastAgent
from fast_agent.config import Settings
from fast_agent.core.agent_app import AgentApp
from fast_agent.llm.model_database import ModelDatabase
from fast_agent.types import RequestParams

from pallas_gateway.config.schema import ModelCapabilities
from pallas_gateway.runtime.models import limit_iterations, model_facts, model_name, register_unknown_models
from pallas_gateway.runtime.ports import ModelFacts

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


def app(**models: str | None) -> AgentApp:
    """Agents by name with the model each uses; None for a workflow, which has none of its own."""
    agents = {
        name: SimpleNamespace(llm=SimpleNamespace(model_name=model) if model is not None else None)
        for name, model in models.items()
    }
    return cast("AgentApp", SimpleNamespace(registered_agents=lambda: agents))


@pytest.mark.parametrize(
    ("models", "facts"),
    [
        ({"served": "gpt-4o"}, ModelFacts("gpt-4o", vision=True)),
        ({"served": "passthrough"}, ModelFacts("passthrough", vision=False)),
        ({"served": "never-heard-of-it"}, ModelFacts("never-heard-of-it", vision=False)),
        ({"helper": "gpt-4o", "served": "passthrough"}, ModelFacts("passthrough", vision=False)),
        ({"part": "gpt-4o", "other": "passthrough", "served": None}, ModelFacts("gpt-4o", vision=True)),
        ({"served": None}, ModelFacts("unknown", vision=False)),
        ({"served": ""}, ModelFacts("unknown", vision=False)),
    ],
)
def test_the_model_is_the_served_agents_or_the_first_of_its_parts(
    models: dict[str, str | None], facts: ModelFacts
) -> None:
    assert model_facts(app(**models), "served", None) == facts


@pytest.mark.parametrize("declared", [True, False])
def test_declared_vision_wins_over_what_fast_agent_knows(declared: bool) -> None:
    for model in ("gpt-4o", "passthrough"):
        facts = model_facts(app(served=model), "served", ModelCapabilities(vision=declared))
        assert facts == ModelFacts(model, vision=declared)


@pytest.mark.parametrize(("asked", "limited"), [(None, 15), (3, 3), (15, 15), (200, 15)])
def test_a_module_may_ask_for_fewer_iterations_but_not_for_more(asked: int | None, limited: int) -> None:
    params = None if asked is None else RequestParams(max_iterations=asked)
    fast = program(lambda fast: fast.agent(name="agent", request_params=params))
    limit_iterations(fast, 15)
    assert limits(fast) == {"agent": limited}


def test_the_limit_holds_for_every_agent_of_the_module_and_changes_nothing_else() -> None:
    fast = program(
        lambda fast: fast.agent(name="one", request_params=RequestParams(temperature=0.5)), with_model(None, name="two")
    )
    limit_iterations(fast, 4)
    assert limits(fast) == {"one": 4, "two": 4}
    assert params_of(fast)["one"].temperature == 0.5


def params_of(fast: FastAgent) -> dict[str, RequestParams]:
    params = {name: data["config"].default_request_params for name, data in fast.agents.items()}
    return {name: one for name, one in params.items() if one is not None}


def limits(fast: FastAgent) -> dict[str, int]:
    return {name: params.max_iterations for name, params in params_of(fast).items()}
