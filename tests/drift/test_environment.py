"""What `make drift` reads from files and from uv; it installs only where it is run."""

import re

from tests.drift.environment import ROOT, differences, not_to_be_had, pins, versions

REFUSED = """\
error: No solution found when resolving dependencies
  cause: Because only certifi<=2026.10.18 is available and fastmcp-slim[server]==4.1.3
         depends on certifi>=2026.10.19, we can conclude that fastmcp-slim[server]==4.1.3 cannot be used.
         And because only pallas-gateway[database]==0.1 is available and pallas-gateway[database] depends on
         fast-agent-mcp==0.10.48, we can conclude that your requirements are unsatisfiable.
"""


def test_exact_versions_of_pyproject_are_replaced() -> None:
    assert pins((ROOT / "pyproject.toml").read_text()) == ["fast-agent-mcp", "hypercorn"]


def test_what_the_index_lacks_is_read_from_the_message() -> None:
    assert not_to_be_had(REFUSED) == {"certifi"}
    assert not_to_be_had("Because a==1 depends on c<1 and b==1 depends on c>1, …") == set()


def test_versions_are_read_from_a_lock_and_from_pip() -> None:
    lock = "a==1.0 \\\n    --hash=sha256:00\n    # via b==9\nB-c==2.0 ; sys_platform == 'win32' \\\n"
    assert versions(lock) == {"a": "1.0", "b-c": "2.0"}
    assert versions("a==1.1\n-e file:///gateway\nd==3\n") == {"a": "1.1", "d": "3"}


def test_each_version_that_is_not_the_locked_one_is_a_line() -> None:
    assert differences({"a": "1", "b": "1", "c": "1"}, {"a": "2", "c": "1", "d": "3"}) == [
        "a 1 -> 2",
        "d (not locked) -> 3",
    ]


def test_the_document_names_targets_that_exist() -> None:
    named = re.findall(r"\bmake ([a-z]+)", (ROOT / "docs" / "operate" / "upgrading.md").read_text())
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named
    assert set(named) <= set(targets)
