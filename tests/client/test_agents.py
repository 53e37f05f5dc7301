"""`agents`, `export --url` and `apply --url` against what need not be a gateway."""

import tempfile
from typing import Any

import pytest

from pallas_gateway.client.agents.definitions import KEYS, body_of, definition_in
from pallas_gateway.features.definitions import definition
from tests.support.commands import Command
from tests.support.odd_server import odd_server
from tests.support.pairs import pairs

STORED = {"name": "poet", "version": 3, "state": "failed", "reason": "No model.", "source": "database"}


def test_the_keys_are_those_that_the_gateway_takes() -> None:
    assert KEYS == definition.KEYS


def test_a_definition_has_the_keys_of_its_place() -> None:
    here: dict[str, Any] = {"default_params": {"max_tokens": 1}, "max_iterations": 2, "tool_limits": {"a/b": 1}}
    there = {"params": {"max_tokens": 1}, "maxIterations": 2, "toolLimits": {"a/b": 1}}
    assert body_of(here) == there
    assert body_of({"unknown_key": 1, "params": {}}) == {"unknown_key": 1, "params": {}}
    assert definition_in({**there, "version": 1, "title": None}) == here


DOES_NOT_RUN = (
    "which is stored and does not run (No model); `pallas-gateway agents edit poet` changes it, and "
    "`agents delete poet` removes the agent.\n"
)


def test_a_stored_version_that_does_not_start_fails_with_its_reason_and_what_to_do(run: Command) -> None:
    with odd_server({"POST": (201, STORED)}) as server:
        ran = run("agents", "create", "poet", "--instruction", "x", "--url", server.url)
    assert (ran.code, ran.out, ran.err) == (1, "", f"added poet (version 3), {DOES_NOT_RUN}")
    with odd_server({"GET": (200, STORED), "POST": (200, STORED)}) as server:
        ran = run("agents", "restore", "poet", "1", "--url", server.url)
    assert (ran.code, ran.err) == (1, f"restored version 1 of poet (version 3), {DOES_NOT_RUN}")


def test_edit_of_a_version_that_does_not_start_fails_and_is_stored(
    run: Command, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("edited")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("VISUAL", "sed -i s/instruction:.*/instruction:\\ new/")
    stored = {**STORED, "instruction": "old"}
    with odd_server({"GET": (200, stored), "PUT": (200, stored)}) as server:
        ran = run("agents", "edit", "poet", "--url", server.url)
    assert (ran.code, ran.out, ran.err) == (1, "", f"changed poet (version 3), {DOES_NOT_RUN}")
    assert list(folder.iterdir()) == []


def test_of_an_agent_without_a_running_version_the_reason_is_shown(run: Command) -> None:
    with odd_server({"GET": (200, {**STORED, "instruction": "x", "owner": "me"})}) as server:
        ran = run("agents", "get", "poet", "--url", server.url)
    assert ran.out.splitlines()[0] == "# Agent 'poet', version 3, owner me, failed; no version runs: No model."


@pytest.mark.parametrize(
    ("owner", "sent"),
    [
        (["key:ann"], "key:ann"),
        (["anonymous"], "anonymous"),
        (["https://login.example", "s1"], {"issuer": "https://login.example", "subject": "s1"}),
    ],
)
def test_an_agent_is_given_to_another_owner(run: Command, owner: list[str], sent: object) -> None:
    with odd_server({"GET": (200, STORED), "PATCH": (200, STORED)}) as server:
        ran = run("agents", "give", "poet", *owner, "--url", server.url)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"gave poet to {' '.join(owner)}; without a grant for it you may no longer see it\n"
    [(headers, body)] = [(headers, body) for method, headers, body in server.seen if method == "PATCH"]
    assert body == {"owner": sent}
    assert "if-match" in headers


def test_an_owner_has_one_or_two_words(run: Command) -> None:
    ran = run("agents", "give", "poet", "a", "b", "c", "--url", "http://localhost:1")
    assert (ran.code, ran.err) == (2, "OWNER is key:NAME, anonymous, or ISSUER SUBJECT.\n")


@pairs(
    {
        "answer": [[], {"source": "database"}, {"source": "database", "version": "x"}, "not JSON"],
        "command": ["agents get x", "agents delete x --yes", "agents edit x", "agents restore x 1", "export x"],
    }
)
def test_what_is_no_gateway_with_agents_is_one_line(run: Command, answer: object, command: str) -> None:
    with odd_server({"GET": (200, answer)}) as server:
        ran = run(*command.split(), "--url", server.url)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("What answers at ")
    assert ran.err.count("\n") == 1


def test_names_that_a_path_would_lose_are_refused(run: Command) -> None:
    for name in ("..", "."):
        ran = run("agents", "delete", name, "--yes", "--url", "http://localhost:1")
        assert (ran.code, ran.err) == (2, f"'{name}' is not the name of an agent.\n")


@pytest.mark.parametrize("command", ["export", "apply -f x.yaml"])
def test_url_and_config_are_two_places(run: Command, command: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("new") / "x.yaml"
    file.write_text("agents: {x: {instruction: y}}\n")
    arguments = command.replace("x.yaml", str(file)).split()
    ran = run(*arguments, "--url", "http://localhost:1", "--config", "agents.yaml")
    assert (ran.code, ran.err) == (2, "--url and --config both say where the agents are; give one of them.\n")
