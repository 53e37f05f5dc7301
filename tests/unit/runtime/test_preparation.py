"""fast-agent is checked before it is prepared, and still fits afterwards."""

from typing import Any

import pytest
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.mcp import mcp_connection_manager
from fast_agent.mcp.mcp_aggregator import MCPAggregator
from fast_agent.mcp.mcp_connection_manager import MCPConnectionManager

from pallas_gateway.errors import PlatformError
from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.seams.installation import check_seams


def test_the_installed_fast_agent_fits_and_still_does_once_it_is_prepared() -> None:
    check_seams()
    preparation.prepare()
    check_seams()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ModelFactory, "_load_provider_class"),
        (mcp_connection_manager, "_subscription_filter"),
        (MCPConnectionManager, "_client_connection_factory"),
    ],
    ids=["platform", "connections", "call_connections"],
)
def test_what_each_module_relies_on_is_checked(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(PlatformError, match=rf"\.{name} is missing"):
        check_seams()


def test_a_private_method_removed_by_an_upgrade_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(MCPAggregator, "_attach_server_locked")
    with pytest.raises(PlatformError, match=r"MCPAggregator\._attach_server_locked"):
        check_seams()


def test_a_mismatch_stops_the_preparation_before_anything_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_prepared", False)
    monkeypatch.delattr(MCPAggregator, "_attach_server_locked")
    before = MCPAggregator.load_servers
    with pytest.raises(PlatformError):
        preparation.prepare()
    assert MCPAggregator.load_servers is before
