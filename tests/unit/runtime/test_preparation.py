"""What the product relies on inside fast-agent, and in what it brings, is checked by name before it is used."""

import pytest
from fast_agent.agents.tool_runner import ToolRunner
from fast_agent.mcp.mcp_aggregator import MCPAggregator

from pallas_gateway.changes.names import places
from pallas_gateway.errors import PlatformError
from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.preparation import RELIED_ON, SEAMS, check_seams

NAMES = {name.path: name for name in (*(name for name, _ in SEAMS), *RELIED_ON)}
OF_CLASSES = [
    path
    for path, name in NAMES.items()
    for holder, _ in places(name)
    if (attribute := path.rpartition(":")[2].rpartition(".")[2]) in vars(holder)
    and attribute not in getattr(holder, "__dataclass_fields__", ())
]
"""Those that are not set in `__init__`, which is not changed here."""


def test_the_product_enters_libraries_by_few_names_each_once() -> None:
    assert len({name.path for name, _ in SEAMS}) == len(SEAMS) <= 31


def test_a_mismatch_stops_the_preparation_before_anything_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_prepared", False)
    monkeypatch.delattr(MCPAggregator, "_attach_server_locked")
    before = MCPAggregator.load_servers
    with pytest.raises(PlatformError):
        preparation.prepare()
    assert MCPAggregator.load_servers is before


def test_the_installed_fast_agent_fits_and_still_does_once_it_is_entered() -> None:
    check_seams()
    preparation.prepare()
    check_seams()


@pytest.mark.parametrize("path", OF_CLASSES)
def test_each_name_that_is_gone_is_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attribute = path.rpartition(":")[2].rpartition(".")[2]
    ((holder, _),) = places(NAMES[path])
    monkeypatch.delattr(holder, attribute)
    if not hasattr(holder, attribute):  # else a base class has it
        with pytest.raises(PlatformError, match=rf"\.{attribute} is missing or has changed"):
            check_seams()


def test_a_loop_that_takes_its_limits_from_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def advance(self: ToolRunner) -> None: ...

    monkeypatch.setattr(ToolRunner, "_advance_iteration", advance)
    with pytest.raises(PlatformError, match=r"ToolRunner\._advance_iteration does not read _request_params"):
        check_seams()
