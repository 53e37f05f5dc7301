"""`pallas-gateway token`: a new key once, on stdout, and its entry on stderr, which fits it; the list of keys."""

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

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
            "--grant: 'admin' is no grant; grants are view:agents, run:agents, view:instructions, edit:agents and "
            "delete:agents, each alone or with :NAME, create:agents, view:metrics, view:gateway, view:calls and "
            "cancel:calls.\n",
        ),
        (
            ["ci", "--not-after", "soon"],
            "--not-after: must be a date such as 2027-01-31, or a date and time with a zone such as "
            "2027-01-31T18:00:00Z.\n",
        ),
        (["ci", "--not-after", "2027-01-31", "--days", "3"], "Give --not-after or --days, not both.\n"),
    ],
)
def test_a_name_or_grant_that_agents_yaml_would_refuse_makes_no_key(
    run: Command, arguments: list[str], message: str
) -> None:
    ran = run("token", "new", *arguments)
    assert (ran.code, ran.out, ran.err) == (2, "", message)


@pytest.mark.parametrize("until", ["2999-12-31", "2999-12-31T18:00:00+02:00"])
def test_an_entry_says_until_when_its_key_is_accepted(run: Command, until: str) -> None:
    document = yaml.safe_load(run("token", "new", "ci", "--not-after", until).err.split("\n\n", 1)[1])
    assert document["gateway"]["auth"]["tokens"][0]["not_after"] == until


def test_a_key_can_be_made_for_some_days(run: Command) -> None:
    before = datetime.now(UTC)
    document = yaml.safe_load(run("token", "new", "ci", "--days", "30").err.split("\n\n", 1)[1])
    until = datetime.fromisoformat(document["gateway"]["auth"]["tokens"][0]["not_after"])
    assert timedelta(days=29, hours=23) < until - before < timedelta(days=30, minutes=1)


KEYS: list[dict[str, Any]] = [
    {"name": "ci", "sha256": "a" * 64, "grants": ["run:agents:a", "view:metrics"]},
    {"name": "old", "sha256": "b" * 64, "not_after": "2020-01-31"},
    {"name": "new", "sha256": "c" * 64, "grants": ["run:agents"], "not_after": "2999-01-01T02:00:00+02:00"},
]


def write_keys(folder: Path, keys: list[dict[str, Any]]) -> None:
    document = {"name": "test", "agents": {"a": {"module": "a"}}, "gateway": {"auth": {"tokens": keys}}}
    (folder / "agents.yaml").write_text(yaml.safe_dump(document))
    (folder / "fastagent.config.yaml").write_text("{}")


def test_keys_are_listed_with_their_grants_and_ends(run: Command, folder: Path) -> None:
    write_keys(folder, KEYS)
    listed, as_json = run("token", "list"), run("token", "list", "--json")

    assert (listed.code, listed.err) == (0, "")
    assert [line.split("   ")[0].strip() for line in listed.out.splitlines()] == ["KEY", "ci", "old", "new"]
    rows = [re.split(r" {3,}", line) for line in listed.out.splitlines()]
    assert rows == [
        ["KEY", "GRANTS", "EXPIRES"],
        ["ci", "run:agents:a view:metrics", "never"],
        ["old", "(no grants)", "2020-01-31T23:59:59Z (expired)"],
        ["new", "run:agents", "2999-01-01T00:00:00Z"],
    ]
    assert json.loads(as_json.out) == [
        {"name": "ci", "grants": ["run:agents:a", "view:metrics"], "notAfter": None, "expired": False},
        {"name": "old", "grants": [], "notAfter": "2020-01-31T23:59:59Z", "expired": True},
        {"name": "new", "grants": ["run:agents"], "notAfter": "2999-01-01T00:00:00Z", "expired": False},
    ]
    assert "a" * 64 not in listed.out + as_json.out


def test_a_list_without_keys_says_how_to_make_one(run: Command, folder: Path) -> None:
    write_keys(folder, [])
    ran = run("token", "list")
    assert (ran.code, ran.out) == (0, "")
    assert "token new NAME" in ran.err


def test_a_list_of_a_wrong_file_is_bad_configuration(run: Command, folder: Path) -> None:
    write_keys(folder, [{"name": "ci", "sha256": "a" * 64, "not_after": "2027-01-31T18:00:00"}])
    ran = run("token", "list")
    assert (ran.code, ran.out) == (2, "")
    assert "gateway.auth.tokens.0.not_after: must be a date such as 2027-01-31" in ran.err
