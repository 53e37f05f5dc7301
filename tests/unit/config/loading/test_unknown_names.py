"""Names that nothing has are warnings with the nearest name, unless they may be those of a database."""

from pathlib import Path

import pytest

from pallas_gateway.config.loading.unknown_names import unknown_models, unknown_names
from tests.support.configuration import load_deployment

KEYS = f"""\
  auth:
    anonymous: [view:agents:libarian]
    tokens:
      - {{name: team-a, sha256: {"a" * 64}, grants: [run:agents:librarian, run:agents:libarian]}}
"""
RULES = """\
  limits:
    rules:
      - {caller: "key:team-x", calls_at_once: 1}
      - {caller: "key:team-?", agent: "lib*", calls_at_once: 1}
      - {agent: librarina, calls_at_once: 1}
      - {caller: "token:unknown", calls_at_once: 1}
      - {caller: "*", calls_at_once: 1}
      - {caller: "[kt]*", calls_at_once: 1}
      - {caller: "anonymous", calls_at_once: 1}
"""
PROJECT = f"name: demo\nagents:\n  librarian:\n    module: a\ngateway:\n{KEYS}{RULES}"


def found(folder: Path, more: str = "") -> list[str]:
    path = folder / "agents.yaml"
    path.write_text(f"{PROJECT}{more}")
    warnings = unknown_names(load_deployment(path, environ={}))
    return [f"{one.line}: {one.path}: {one.message}".replace(str(folder), "") for one in warnings]


def test_keys_and_agents_that_are_not_there_are_named_with_the_nearest(tmp_path: Path) -> None:
    assert found(tmp_path) == [
        "12: gateway.limits.rules.0.caller: no key 'team-x' in gateway.auth.tokens (did you mean 'team-a'?)",
        "14: gateway.limits.rules.2.agent: no agent 'librarina' (did you mean 'librarian'?)",
        "9: gateway.auth.tokens.0.grants.1: no agent 'libarian' (did you mean 'librarian'?)",
        "7: gateway.auth.anonymous.0: no agent 'libarian' (did you mean 'librarian'?)",
    ]


def test_with_a_database_every_agent_may_be_there_and_its_folder_must_be(tmp_path: Path) -> None:
    more = "  database: sqlite:///nowhere/a%20b.db\n  agents_may_use: {approve: [mail/*, '*/x']}\n"
    assert found(tmp_path, more)[1:] == [
        "20: gateway.agents_may_use.approve.0: 'mail/*' is of no server or agent of this project",
        "19: gateway.database: no folder /nowhere; the gateway makes none",
    ]


@pytest.mark.parametrize(
    ("value", "is_missing"),
    [
        ("nowhere/audit.log", True),
        ("nowhere%2Faudit.log", False),
        ("audit.log", False),
        ("'-'", False),
        ("'syslog:/nowhere/log'", False),
    ],
)
def test_a_folder_of_the_audit_log_that_is_not_there_is_named(tmp_path: Path, value: str, *, is_missing: bool) -> None:
    of_folder = [one for one in found(tmp_path, f"  audit_log: {value}\n") if "audit_log" in one]
    assert of_folder == (["19: gateway.audit_log: no folder /nowhere; the gateway makes none"] if is_missing else [])


@pytest.mark.parametrize("more", ["", "  database: sqlite:///a.db\n"])
def test_prices_of_models_that_no_agent_uses_are_named(tmp_path: Path, more: str) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text(
        f"{PROJECT}{more}  prices:\n    openai.fak: {{input: 1, output: 1}}\n    gpt-5: {{input: 1, output: 1}}\n"
    )
    models = {"openai.fake", "fake", "openai.gpt-5", "gpt-5"}
    warnings = unknown_models(load_deployment(path, environ={}), models)
    wanted = [] if more else [("gateway.prices.openai.fak", "no agent uses this model (did you mean 'openai.fake'?)")]
    assert [(one.path, one.message) for one in warnings] == wanted
