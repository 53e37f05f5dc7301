"""Which agent of a module or card an entry serves, and what is said when that is not clear."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fast_agent.core.fastagent import FastAgent

from pallas_gateway.errors import AgentStartError
from pallas_gateway.runtime.loading.agent_choice import parts_of, served_agent
from tests.support.memory_runtime import a_spec

type Define = Callable[[FastAgent], object]

PLAN = replace(a_spec("lead"), module="agents.lead")
CHOOSE = "choose one with `agents.lead.agent` in agents.yaml"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def work() -> None:
    """Decorated by every definition."""


def agents(*names: str, **options: Any) -> Define:
    def define(fast: FastAgent) -> None:
        for name in names:
            fast.agent(name=name, instruction="", **options)(work)

    return define


def program(*define: Define) -> FastAgent:
    fast = FastAgent("program", parse_cli_args=False)
    for one in define:
        one(fast)
    return fast


WORKFLOWS: dict[str, Define] = {
    "chain": lambda fast: fast.chain(name="root", sequence=["a", "b"])(work),
    "parallel": lambda fast: fast.parallel(name="root", fan_out=["a"], fan_in="b")(work),
    "evaluator": lambda fast: fast.evaluator_optimizer(name="root", generator="a", evaluator="b")(work),
    "orchestrator": lambda fast: fast.orchestrator(name="root", agents=["a", "b"])(work),
    "planner": lambda fast: fast.iterative_planner(name="root", agents=["a", "b"])(work),
    "router": lambda fast: fast.router(name="root", agents=["a", "b"])(work),
    "maker": lambda fast: [agents("b", agents=["a"])(fast), fast.maker(name="root", worker="b")(work)],
    "agents as tools": lambda fast: fast.agent(name="root", instruction="", agents=["a", "b"])(work),
}


@pytest.mark.parametrize("kind", WORKFLOWS)
def test_the_root_is_served_where_none_is_the_default(kind: str) -> None:
    names = ("a",) if kind == "maker" else ("a", "b")
    fast = program(agents(*names), WORKFLOWS[kind])
    assert served_agent(fast, PLAN) == "root"
    assert parts_of(fast.agents, "root") == {"root", "a", "b"}
    assert parts_of(fast.agents, "a") == {"a"}


def test_the_default_comes_before_the_root_and_the_named_one_before_both() -> None:
    fast = program(agents("a"), agents("b", default=True), WORKFLOWS["chain"])
    assert served_agent(fast, PLAN) == "b"
    assert served_agent(fast, replace(PLAN, agent="a")) == "a"


def test_the_only_one_is_served() -> None:
    assert served_agent(program(agents("a")), PLAN) == "a"


@pytest.mark.parametrize(
    ("define", "says"),
    [
        ((agents("a", "b"),), f"defines several agents (a and b) and marks none as the default; {CHOOSE} (a or b)"),
        (
            (agents("a", "b", "c"), WORKFLOWS["router"]),
            f"defines several agents (a, b, c and root) and marks none as the default; {CHOOSE} (c or root)",
        ),
        (
            (agents("a", agents=["b"]), agents("b", agents=["a"])),
            f"defines several agents (a and b) and marks none as the default; {CHOOSE} (a or b)",
        ),
        ((agents("a", "b", default=True),), f"marks several agents as the default (a and b); {CHOOSE} (a or b)"),
        ((), "defines no agent to serve"),
    ],
)
def test_what_is_not_clear_is_said_with_the_candidates_and_the_key(define: tuple[Define, ...], says: str) -> None:
    with pytest.raises(AgentStartError) as raised:
        served_agent(program(*define), PLAN)
    message = f"module 'agents.lead' {says}"
    assert (raised.value.reason, str(raised.value)) == ("no_agent", message)
    assert raised.value.places == (("module", message),)


def test_a_named_one_that_is_not_there_is_said_at_its_key() -> None:
    with pytest.raises(AgentStartError) as raised:
        served_agent(program(agents("writer", "reader")), replace(PLAN, agent="wirter"))
    message = "module 'agents.lead' defines no agent 'wirter' (did you mean 'writer'?); it has reader and writer"
    assert raised.value.places == (("agent", message),)
