"""Whether another start would make the same agent: its plan, its files, and of the settings only what it uses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pallas_gateway.file_stamps import stamp
from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.loading.fingerprint import AgentFingerprint, SettingsDigests
from pallas_gateway.runtime.protocols import AgentSpec, Declared
from tests.support.memory_runtime import a_spec

PLAN = a_spec("lead")
RESEARCH = "http://localhost:24211/mcp"
FORWARDING = {"servers": {"a": {"url": "http://a/mcp", "forward_inbound_auth": True}}}


@pytest.fixture(autouse=True)
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    monkeypatch.chdir(tmp_path)
    write(default_model="passthrough")


def write(*, name: str = "fastagent.config.yaml", **settings: Any) -> None:
    Path(name).write_text(yaml.safe_dump(settings))


def servers(**urls: str) -> dict[str, Any]:
    return {"servers": {name: {"url": url} for name, url in urls.items()}}


def origin(
    *, used: tuple[str, ...] = (), files: tuple[Path, ...] = (), addresses: tuple[str, ...] = ()
) -> AgentFingerprint:
    digests = SettingsDigests()
    stamps = {path: stamp(path) for path in files}
    now = digests.of(None, used)
    return AgentFingerprint(PLAN, stamps, None, frozenset(used), frozenset(addresses), now, digests)


def test_nothing_changed_as_long_as_nothing_did(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("one")
    one = origin(files=(tmp_path / "agent.py", tmp_path / "not_there.md"))
    write(default_model="passthrough")  # written again
    assert one.is_still(replace(PLAN, on_operation=lambda *_, **__: None))


@pytest.mark.parametrize(
    "spec",
    [
        replace(PLAN, module="agents.other"),
        replace(PLAN, max_iterations=3),
        replace(PLAN, loop_repeat_threshold=0),
        replace(PLAN, max_relay_depth=1),
        replace(PLAN, module=None, declared=Declared(instruction="You are lead.")),
    ],
)
def test_another_plan_is_a_change(spec: AgentSpec) -> None:
    assert not origin().is_still(spec)


def test_a_peer_as_a_server_matters_to_who_uses_it() -> None:
    spec = replace(PLAN, peer_servers={"research": "http://127.0.0.1:1/agents/research/mcp"})
    assert origin(used=("notes",)).is_still(spec)
    assert not origin(used=("research",)).is_still(spec)


def test_a_peer_matters_to_who_calls_its_address() -> None:
    spec = replace(PLAN, peers={RESEARCH: "research"})
    assert origin().is_still(spec)
    assert not origin(addresses=(RESEARCH,)).is_still(spec)


@pytest.mark.parametrize("becomes", ["another text", None])
def test_a_file_that_is_another_one_is_a_change(becomes: str | None, tmp_path: Path) -> None:
    path = tmp_path / "prompt.md"
    path.write_text("one")
    one = origin(files=(path,))
    path.unlink() if becomes is None else path.write_text(becomes)
    assert not one.is_still(PLAN)


@pytest.mark.parametrize(
    ("before", "after", "used", "is_still"),
    [
        ({"mcp": servers(a="http://a/mcp")}, {"mcp": servers(a="http://b/mcp")}, ("a",), False),
        ({"mcp": servers(a="http://a/mcp")}, {"mcp": servers(a="http://b/mcp")}, (), True),
        ({"mcp": servers(a="http://a/mcp")}, {"mcp": servers(a="http://a/mcp", b="http://b/mcp")}, ("a",), True),
        ({"mcp": servers(a="http://a/mcp")}, {}, ("a",), False),
        ({"mcp": servers(a="http://a/mcp")}, {"mcp": FORWARDING}, ("a",), False),  # a key of the gateway itself
        ({"generic": {"api_key": "one"}}, {"generic": {"api_key": "two"}}, (), False),
        ({"default_model": "passthrough"}, {"default_model": "playback"}, (), False),
    ],
)
def test_of_the_settings_what_an_agent_uses_counts(
    before: dict[str, Any], after: dict[str, Any], used: tuple[str, ...], *, is_still: bool
) -> None:
    write(**before)
    one = origin(used=used)
    write(**after)
    assert one.is_still(PLAN) == is_still


def test_a_secrets_file_that_comes_is_a_change() -> None:
    one = origin()
    write(name="fastagent.secrets.yaml", generic={"api_key": "not-a-key"})
    assert not one.is_still(PLAN)


def test_settings_that_cannot_be_read_are_a_change_and_no_secret_is_kept() -> None:
    write(generic={"api_key": "hunter2-secret"})
    one = origin()
    assert "hunter2-secret" not in repr(one)
    Path("fastagent.config.yaml").write_text("mcp: [")
    assert not one.is_still(PLAN)
