"""`pallas-gateway token new`: the key once, on stdout; its entry for agents.yaml, which fits it, beside it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from tests.support.commands import Command


def test_the_key_stands_alone_on_stdout_and_its_entry_on_stderr(run: Command) -> None:
    ran = run("token", "new", "ci", "--grant", "run:agents:research", "--grant", "view:metrics")
    key = ran.out.strip()
    assert (ran.code, key[:4], len(key), ran.out.count("\n")) == (0, "pgw_", 47, 1)
    document = yaml.safe_load(ran.err.split("\n\n", 1)[1])
    assert document["gateway"]["auth"]["tokens"] == [
        {
            "name": "ci",
            "sha256": hashlib.sha256(key.encode()).hexdigest(),
            "grants": ["run:agents:research", "view:metrics"],
        }
    ]
    assert key not in ran.err


@pytest.mark.parametrize("name", ["123", "true", "null", "0x1F", "2024-01-01"])
def test_an_entry_is_read_as_it_was_meant_whatever_the_name_looks_like(run: Command, name: str) -> None:
    document = yaml.safe_load(run("token", "new", name).err.split("\n\n", 1)[1])
    assert document["gateway"]["auth"]["tokens"][0]["name"] == name


def test_no_two_keys_are_the_same_and_each_may_run_every_agent_unless_told_otherwise(run: Command) -> None:
    first, second = run("token", "new", "ci"), run("token", "new", "ci")
    assert first.out != second.out
    assert "grants: [run:agents]" in first.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["c i"], "NAME: 'c i' may hold only letters, digits, '_', '.', '@' and '-'.\n"),
        (
            ["ci", "--grant", "admin"],
            "--grant: 'admin' is no grant; grants are view:agents, run:agents and view:instructions, each alone or "
            "with :NAME, view:metrics and view:gateway.\n",
        ),
    ],
)
def test_a_name_or_grant_that_agents_yaml_would_refuse_makes_no_key(
    run: Command, arguments: list[str], message: str
) -> None:
    ran = run("token", "new", *arguments)
    assert (ran.code, ran.out, ran.err) == (2, "", message)
