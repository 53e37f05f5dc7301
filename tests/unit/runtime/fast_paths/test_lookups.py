"""What is looked up in short is what fast-agent finds."""

from __future__ import annotations

import pytest
from fast_agent.agents.agent_types import AgentConfig
from fast_agent.agents.mcp_agent import McpAgent
from fast_agent.config import GenericSettings, Settings
from fast_agent.llm.provider_key_manager import ProviderKeyManager
from mcp_types import TextContent
from typing_extensions import get_protocol_members

from pallas_gateway.runtime import patches
from pallas_gateway.runtime.fast_paths import lookups


@pytest.mark.parametrize("key", ["a-key", None])
def test_a_providers_key_is_found_in_the_settings(key: str | None) -> None:
    patches.prepare()

    found = ProviderKeyManager.get_config_file_key("generic", Settings(generic=GenericSettings(api_key=key)))

    assert found == key
    assert ProviderKeyManager.get_config_file_key("generic", {"generic": {"api_key": key}}) == key
    assert ProviderKeyManager.get_config_file_key("nowhere", Settings()) is None


def test_a_known_class_fulfils_its_protocol() -> None:
    patches.prepare()
    lookups.install()  # a second time
    instances = [McpAgent(AgentConfig("agent")), Settings(), TextContent(type="text", text="")]

    for module, name, known in lookups.IMPLEMENTATIONS:
        first, protocol = getattr(module, name)
        instance = next(one for one in instances if isinstance(one, known))
        assert first is known
        assert isinstance(instance, protocol), name
        assert all(hasattr(instance, member) for member in get_protocol_members(protocol)), name
