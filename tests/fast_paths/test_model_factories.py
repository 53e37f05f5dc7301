"""The model of an agent is found once for each started agent."""

from types import SimpleNamespace
from typing import Any

from fast_agent import FastAgent
from fast_agent.config import Settings

from pallas_gateway.fast_paths.model_factories import remembering
from pallas_gateway.runtime import preparation


def test_a_model_is_looked_for_once_and_one_with_parameters_each_time() -> None:
    asked: list[Any] = []

    def find(model: Any = None, request_params: Any = None) -> object:
        asked.append((model, request_params))
        return object()

    remembered = remembering(find)

    assert remembered(model="one") is remembered(model="one")
    assert remembered(model="one") is not remembered(model="two")
    assert remembered(model="one", request_params=1) is not remembered(model="one", request_params=1)
    assert asked == [("one", None), ("two", None), ("one", 1), ("one", 1)]


def test_an_agent_looks_for_its_model_once() -> None:
    preparation.prepare()

    started: Any = SimpleNamespace(context=SimpleNamespace(config=Settings()))
    find = FastAgent._build_model_factory_func(started, None, None)

    assert find(model="passthrough") is find(model="passthrough")
