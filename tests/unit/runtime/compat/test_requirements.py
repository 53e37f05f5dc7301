"""What the gateway relies on inside fast-agent, and in what it brings, is checked by name before it is used."""

from typing import Any

import openai
import pytest
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.mcp import mcp_connection_manager
from fast_agent.mcp.mcp_aggregator import MCPAggregator
from fast_agent.mcp.mcp_connection_manager import MCPConnectionManager

from pallas_gateway.errors import PlatformError
from pallas_gateway.runtime import patches
from pallas_gateway.runtime.compat.requirements import check_names


class Kept:
    def __init__(self) -> None:
        self.kept = 1


class Fits(Kept):
    def load(self, *, force: bool) -> None: ...

    value = 7


def test_the_installed_fast_agent_fits_and_still_does_once_it_is_prepared() -> None:
    patches.check()
    patches.prepare()
    patches.check()


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
        patches.check()


def test_an_owner_may_be_named_before_it_is_imported() -> None:
    check_names((("openai:AsyncOpenAI", "_process_response_data", ("data",)),))
    for owner in ("openai:Gone", "openai.gone"):
        with pytest.raises(PlatformError, match=rf"does not fit: {owner}\.at_all is missing"):
            check_names(((owner, "at_all", ()),))
    assert not hasattr(openai, "Gone")


def test_what_instances_get_when_they_are_made_counts_as_the_classs() -> None:
    check_names(((Fits, "kept", ()),))
    with pytest.raises(PlatformError, match=r"Fits\.dropped is missing"):
        check_names(((Fits, "dropped", ()),))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("gone", ()), ("load", ("self", "renamed")), ("value", ("self",))],
    ids=["gone", "another parameter", "no function any more"],
)
def test_a_name_that_does_not_fit_is_a_platform_error(name: str, parameters: tuple[str, ...]) -> None:
    with pytest.raises(PlatformError, match=rf"fast-agent \d+\.\S+ does not fit: Fits\.{name}") as raised:
        check_names(((Fits, "load", ("self", "force")), (Fits, name, parameters)))
    assert raised.value.reason == "platform_mismatch"
    assert "requirements.lock" in str(raised.value)


def test_a_private_method_removed_by_an_upgrade_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(MCPAggregator, "_attach_server_locked")
    with pytest.raises(PlatformError, match=r"MCPAggregator\._attach_server_locked"):
        patches.check()


def test_a_mismatch_stops_the_preparation_before_anything_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "_prepared", False)
    monkeypatch.delattr(MCPAggregator, "_attach_server_locked")
    before = MCPAggregator.load_servers
    with pytest.raises(PlatformError):
        patches.prepare()
    assert MCPAggregator.load_servers is before
