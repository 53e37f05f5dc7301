"""The registry's documents: pure functions of what is configured and what is known."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pallas_gateway.composition.features import FEATURES
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.core.gateway import Gateway
from pallas_gateway.features.registry import registry
from pallas_gateway.features.registry.registry import clamped
from pallas_gateway.urls import Addresses
from tests.support.configuration import load_deployment
from tests.support.memory_runtime import MemoryRuntime

CAPABILITIES = {"vision": True, "context_window": 32768, "max_output_tokens": 2048}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gateway_of(
    agents: Mapping[str, Mapping[str, Any]],
    *,
    fastagent: Mapping[str, Any] | None = None,
    overrides: Overrides | None = None,
    **document: Any,
) -> Gateway:
    modules = {name: {"module": f"agents.{name}", **agent} for name, agent in agents.items()}
    Path("agents.yaml").write_text(yaml.safe_dump({"name": "demo", **document, "agents": modules}, sort_keys=False))
    Path("fastagent.config.yaml").write_text(yaml.safe_dump(dict(fastagent or {})))
    configuration = load_deployment(Path("agents.yaml"), environ={}, overrides=overrides or Overrides())
    return Gateway(configuration, Addresses(configuration), MemoryRuntime({}), features=FEATURES)


def server_of(agent: Mapping[str, Any] | None = None, **project: Any) -> dict[str, Any]:
    gateway = gateway_of({"echo": agent or {}}, **project)
    server: dict[str, Any] = registry.entry(gateway, gateway.agents["echo"])["server"]
    return server


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("short", "short"),
        ("x" * 100, "x" * 100),
        ("x" * 101, "x" * 99 + "…"),
        ("x" * 98 + "  and more", "x" * 98 + "…"),
        ("ü" * 200, "ü" * 99 + "…"),
    ],
)
def test_a_text_is_clamped_to_a_hundred_characters(text: str, shown: str) -> None:
    assert clamped(text) == shown


def test_until_then_it_is_the_one_the_agent_is_declared_with() -> None:
    declared = {"module": None, "instruction": "You are echo.", "model": "openai.gpt-of-its-own"}
    server = server_of({**declared, "model_capabilities": CAPABILITIES}, fastagent={"default_model": "openai.gpt-x"})
    assert server["capabilities"]["model"] == "gpt-of-its-own"
