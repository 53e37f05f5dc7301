"""Loading of providers' classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider

from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.llm import loading

if TYPE_CHECKING:
    import pytest


def test_provider_of_many_agents_is_repaired_once(monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    first = ModelFactory._load_provider_class(Provider.GENERIC)
    repaired: list[object] = []
    monkeypatch.setattr(loading, "_repaired", repaired.append)

    assert ModelFactory._load_provider_class(Provider.GENERIC) is first
    assert repaired == []
