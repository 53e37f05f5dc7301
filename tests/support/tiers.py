"""Which tests a command runs, and in which order: a pytest plugin.

`--tier test`: each behaviour once. `--tier all`: what that leaves out (the mark `whole`), and what needs programs of
others (`needs`). Without the option all of them run, but no `soak`.

The mark `whole` says that another test, or another cell of the same test, guards the same behaviour in `make test`, and
names it: `whole("e2e/test_protocols.py::test_name")`. Without a name it is for cells, and for folders of `ALONE`.
Cells of `THINNED` parameters and of providers get it without being written.
"""

import random
import sys
import zlib
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.support.costs import known_costs
from tests.support_programs import check_needs, needed

TIERS = ("test", "all")
ALONE = ("conformance", "console", "deploy", "upstream")
"""Folders below tests/ whose tests may be `whole` without naming another one."""

THINNED = {"version", "era", "connect"}
"""Parameters that name a version of the protocol or a client of one: `make test` has one of their values for each
combination of the others, by turns."""

EVERY_VERSION = {
    f"tests/e2e/test_{name}.py" for name in ("protocols", "all_agents", "identity", "watching", "question_table")
}
"""Files whose subject is the protocol: nothing is thinned there."""

DIALECTS = {"generic", "responses", "anthropic", "google", "bedrock"}
"""Providers that stand in `make test` for all that speak the same protocol, in tests of several providers."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, help="run the tests of `make test`, or what it leaves out")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests of each file in another order")


def pytest_runtest_setup(item: pytest.Item) -> None:
    check_needs(item)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select, then order files by what they cost, the dearest first: the last ones end together."""
    thin(items)
    tier = config.getoption("tier")
    if tier is not None:
        chosen = [item for item in items if is_in(tier, item)]
        if left := [item for item in items if not is_in(tier, item)]:
            config.hook.pytest_deselected(items=left)
        items[:] = chosen
    if (seed := config.getoption("shuffle")) is not None:
        random.Random(seed).shuffle(items)  # noqa: S311  each process the same
    seconds = {file: float(tests) for file, tests in Counter(map(_file, items)).items()}  # of files not yet measured
    seconds |= {file: cost.wall for file, cost in known_costs(tier).items()}
    items.sort(key=lambda item: (-seconds[_file(item)], _file(item)))


def is_in(tier: str, item: pytest.Item) -> bool:
    is_whole = item.get_closest_marker("whole") is not None
    return not is_whole if tier == "test" else is_whole or bool(needed(item))


def thin(items: Iterable[pytest.Item]) -> None:
    """Mark the cells of `THINNED` parameters that `make test` leaves out."""
    for cells in _by_function(items):
        _thin_providers(cells)
        _thin_versions(cells)


def _thin_providers(cells: list[pytest.Function]) -> None:
    providers = sys.modules.get("tests.support.provider_gateways")
    if providers is None:
        return
    kind = providers.Provider
    of = {cell: one.name for cell in cells for one in cell.callspec.params.values() if isinstance(one, kind)}
    if DIALECTS & set(of.values()):
        for cell, name in of.items():
            if name not in DIALECTS:
                cell.add_marker(pytest.mark.whole)


def _thin_versions(cells: list[pytest.Function]) -> None:
    cells = [cell for cell in cells if THINNED & cell.callspec.params.keys()]
    if cells and _file(cells[0]) not in EVERY_VERSION:
        groups: dict[str, list[pytest.Function]] = {}
        for cell in cells:
            others = {name: value for name, value in cell.callspec.params.items() if name not in THINNED}
            groups.setdefault(repr(others), []).append(cell)
        turn = zlib.crc32(cells[0].originalname.encode())
        for number, group in enumerate(groups.values()):
            left_out = [cell for cell in group if cell is not group[(turn + number) % len(group)]]
            for cell in left_out:
                cell.add_marker(pytest.mark.whole)


def _by_function(items: Iterable[pytest.Item]) -> Iterable[list[pytest.Function]]:
    found: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            found.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return found.values()


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
