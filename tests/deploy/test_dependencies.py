"""The declared dependencies, as far as they can be judged without a package index; .ci/resolve.sh resolves them."""

from __future__ import annotations

import tomllib
from importlib.metadata import requires

from packaging.requirements import Requirement

from tests.deploy.adapting import ROOT


def test_no_package_with_an_extra_is_declared_that_fast_agent_pins() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    with_extra = {one.name for one in map(Requirement, declared) if one.extras}
    pinned = {one.name for one in map(Requirement, requires("fast-agent-mcp") or []) if "==" in str(one.specifier)}
    assert with_extra & pinned == set(), "pip 23.2 cannot resolve these"
