"""`agents.example.yaml` loads as it is, and names every key there is, with its true default."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.config.model.auth import AuthSettings, JwtSettings
from pallas_gateway.config.model.deployment import Deployment, GatewaySettings
from tests.support.configuration import load_deployment
from tests.unit.config.configuration_page import SECTIONS

TEMPLATE = Path(__file__).parents[2] / "agents.example.yaml"
KEY = re.compile(r"^ *(?:# *)?(?:- )?([a-z_0-9]+):", re.MULTILINE)
COMMENTED = re.compile(r"^( *)# ( *(?:- )?[a-z_0-9]+:.*)$", re.MULTILINE)


def test_the_template_loads_and_its_agents_are_the_modules_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # no fastagent.config.yaml here: the example needs none
    deployment = load_deployment(TEMPLATE, environ={}).deployment
    assert {name: agent.module for name, agent in deployment.agents.items()} == {
        **{name: f"pallas_gateway.example.{name}" for name in ("concierge", "research", "desk", "echo")},
        "guide": None,
    }
    assert deployment.agents["guide"].makings == ("instruction",)
    assert deployment.agents["concierge"].depends_on == ("research",)
    assert deployment.agents["concierge"].model_capabilities is not None
    assert deployment.gateway == GatewaySettings()


@pytest.mark.parametrize(("title", "section"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_the_template_mentions_every_key(title: str, section: type[BaseModel]) -> None:
    mentioned = set(KEY.findall(TEMPLATE.read_text(encoding="utf-8")))
    assert set(section.model_fields) <= mentioned, title


def test_what_is_commented_out_loads_too() -> None:
    Deployment.model_validate(_with_comments_as_keys())


def test_commented_scalars_of_an_agent_and_the_gateway_show_the_real_defaults() -> None:
    data = _with_comments_as_keys()
    examples = {
        "icon",
        "public_url",
        "tls",
        "auth",
        "database",
        "limits",
        "audit_log",
        "tasks",
    }  # these have no default to show
    gateway = GatewaySettings.model_validate({k: v for k, v in data["gateway"].items() if k not in examples})
    plain = GatewaySettings(host="127.0.0.1", port=24200)  # what these two fall back to, as their comments say
    assert gateway == plain
    auth = AuthSettings.model_validate(data["gateway"]["auth"])
    shown = {key: value for key, value in auth if key not in {"tokens", "jwt"}}
    assert shown == {key: value for key, value in AuthSettings() if key not in {"tokens", "jwt"}}
    assert auth.jwt == JwtSettings(issuer="https://login.example.com", jwks_uri="https://login.example.com/jwks")
    limits = ("max_iterations", "loop_repeat_threshold", "call_timeout_seconds", "max_in_flight")
    for key in limits:
        assert data["agents"]["concierge"][key] == AgentSettings.model_fields[key].default, key


def test_the_peer_address_of_the_example_is_the_port_of_its_research_agent() -> None:
    path = Path(__file__).parents[2] / "pallas_gateway" / "example" / "fastagent.config.yaml"
    servers = yaml.safe_load(path.read_text(encoding="utf-8"))["mcp"]["servers"]
    port = load_deployment(TEMPLATE, environ={}).deployment.agents["research"].port
    assert servers["research"]["url"] == f"http://localhost:{port}/mcp"


def _with_comments_as_keys() -> dict[str, dict[str, dict[str, object]]]:
    text = COMMENTED.sub(r"\1\2", TEMPLATE.read_text(encoding="utf-8"))
    data: dict[str, dict[str, dict[str, object]]] = yaml.safe_load(text)
    return data
