"""Loading of providers' classes."""

import pytest
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider

from pallas_gateway.changes.registry import Registry
from pallas_gateway.runtime import preparation


def test_the_library_of_a_provider_is_changed_for_its_first_agent_only(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    first = ModelFactory._load_provider_class(Provider.GENERIC)
    installed: list[object] = []
    monkeypatch.setattr(Registry, "install", lambda *given: installed.append(given))

    assert ModelFactory._load_provider_class(Provider.GENERIC) is first
    assert installed == []
