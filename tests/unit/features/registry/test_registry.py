"""The registry's documents: pure functions of what is configured and what is known."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pallas_gateway.composition.features import FEATURES
from pallas_gateway.core.gateway import Gateway
from pallas_gateway.features.registry import registry
from pallas_gateway.features.registry.registry import clamped
from pallas_gateway.urls import Addresses
from tests.support.configuration import load_deployment
from tests.support.memory_runtime import MemoryRuntime

CAPABILITIES = {"vision": True, "context_window": 32768, "max_output_tokens": 2048}


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


def test_until_then_it_is_the_one_the_agent_is_declared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    declared = {"instruction": "You are echo.", "model": "openai.gpt-of-its-own", "model_capabilities": CAPABILITIES}
    Path("agents.yaml").write_text(yaml.safe_dump({"name": "demo", "agents": {"echo": declared}}))
    Path("fastagent.config.yaml").write_text(yaml.safe_dump({"default_model": "openai.gpt-x"}))
    configuration = load_deployment(Path("agents.yaml"), environ={})
    gateway = Gateway(configuration, Addresses(configuration), MemoryRuntime({}), features=FEATURES)
    server: dict[str, Any] = registry.entry(gateway, gateway.agents["echo"])["server"]
    assert server["capabilities"]["model"] == "gpt-of-its-own"
