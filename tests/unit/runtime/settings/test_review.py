"""What is said of fast-agent's own files: which keys and values are wrong there, and which are left alone."""

from pathlib import Path
from typing import Any

import fast_agent
import pytest
import yaml
from fast_agent.config import MCPServerSettings

from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.settings.review import review

RESOURCES = Path(fast_agent.__file__).parent / "resources"
SERVER = {"url": "http://argos.example/mcp"}


def server(**keys: Any) -> dict[str, Any]:
    return {"mcp": {"servers": {"n": keys}}}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparation.prepare()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAST_AGENT_MODEL", raising=False)


def reviewed(**written: Any) -> dict[str, str]:
    Path("fastagent.config.yaml").write_text(yaml.safe_dump(written))
    return dict(review(written, None))


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (server(comand="x"), {"mcp.servers.n.comand": "unknown key (did you mean 'command'?)"}),
        (server(**SERVER, zzz=1), {"mcp.servers.n.zzz": "unknown key"}),
        (server(), {"mcp.servers.n": "needs a url, or a command to start"}),
        (server(headers={"a": "b"}), {"mcp.servers.n": "needs a url, or a command to start"}),
        ({"mcp": {"servrs": {}}}, {"mcp.servrs": "unknown key (did you mean 'servers'?)"}),
        (
            server(**SERVER, auth={"oauht": False}),
            {"mcp.servers.n.auth.oauht": "unknown key (did you mean 'oauth'?)"},
        ),
        ({"default_modle": "passthrough"}, {"default_modle": "unknown key (did you mean 'default_model'?)"}),
        ({"mpc": {}}, {"mpc": "unknown key (did you mean 'mcp'?)"}),
        ({"openai": {"base_ulr": "x"}}, {"openai.base_ulr": "unknown key (did you mean 'base_url'?)"}),
        ({"logger": {"lvel": "debug"}}, {"logger.lvel": "unknown key (did you mean 'level'?)"}),
        (
            {"logger": {"level": "debgu"}},
            {"logger.level": "must be 'debug', 'info', 'warning' or 'error' (did you mean 'debug'?)"},
        ),
        ({"mcp": {"client": {"zzz": 1}}}, {"mcp.client.zzz": "unknown key"}),
        (server(url=5), {"mcp.servers.n.url": "must be text; put a number, "}),
        (
            {"default_model": "openai.gpt-4o?reasoning=zzz"},
            {"default_model": "model 'openai.gpt-4o?reasoning=zzz' cannot be used: "},
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_key(written: dict[str, Any], found: dict[str, str]) -> None:
    told = reviewed(**written)
    assert told.keys() == found.keys()
    for key, sentence in found.items():
        assert told[key].startswith(sentence)


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"mine": {"default_modle": 1}, "models": [], "x-default_modle": 1},
        server(**SERVER, **{"x-note": "mine"}, forward_inbound_auth=True),
        server(target="uvx mcp-server-time"),
        server(transport="sse", url="http://argos.example/x"),
        server(management="provider", connector_id="connector_gmail", access_token="k"),
        {"model_capabilities": {"vision": True}},
        # Read by fast-agent though its models do not name them
        {"google": {"vertex_ai": {"enabled": False}}, "huggingface": {"api_key": "k"}},
        {"azure": {"use_default_azure_credential": True, "base_url": "https://x.openai.azure.com"}},
        {"anthropic": {"cache_mode": "auto"}, "environments": {}, "model_references": {"system": {"fast": "openai.x"}}},
    ],
)
def test_what_fast_agent_takes_is_fine(written: dict[str, Any]) -> None:
    assert reviewed(**written) == {}


@pytest.mark.parametrize("path", sorted(RESOURCES.rglob("fast-agent.yaml")), ids=lambda path: path.parent.name)
def test_fast_agents_own_files_are_fine(path: Path) -> None:
    assert reviewed(**yaml.safe_load(path.read_text())) == {}


@pytest.mark.filterwarnings("ignore:`(auto_sampling|mcp_timeline)` is deprecated")
def test_keys_of_earlier_versions_are_fine() -> None:
    assert reviewed(auto_sampling=True, mcp_timeline={"steps": 3}) == {}


def test_a_servers_own_keys_are_all_known() -> None:
    keys = [*MCPServerSettings.model_fields, "target", "forward_inbound_auth", "token_exchange"]
    found = reviewed(mcp={"servers": {"n": dict.fromkeys(keys, None)}})
    assert not any("unknown" in sentence for sentence in found.values())


def test_no_wrong_value_is_shown() -> None:
    found = reviewed(openai={"api_key": ["sk-hunter2"]}, llm_retries="sk-hunter2", logger={"level": "sk-hunter2"})
    assert found.keys() == {"openai.api_key", "llm_retries", "logger.level"}
    assert "hunter2" not in str(found)


def test_a_model_of_the_environment_is_told_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAST_AGENT_MODEL", "opnai.gpt-4o")
    (sentence,) = reviewed().values()
    assert sentence.startswith("FAST_AGENT_MODEL 'opnai.gpt-4o' cannot be used: fast-agent knows no provider 'opnai'")
