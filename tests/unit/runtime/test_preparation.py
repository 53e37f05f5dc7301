"""fast-agent is checked before it is prepared; `seams/test_installation.py` shows for each name that it is."""

import pytest
from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.errors import PlatformError
from pallas_gateway.runtime import preparation


def test_a_mismatch_stops_the_preparation_before_anything_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_prepared", False)
    monkeypatch.delattr(MCPAggregator, "_attach_server_locked")
    before = MCPAggregator.load_servers
    with pytest.raises(PlatformError):
        preparation.prepare()
    assert MCPAggregator.load_servers is before
