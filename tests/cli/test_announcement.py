"""What `serve` prints once every agent was tried: the table, why agents are not up, and a command that works."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pallas_gateway.cli.serve import announcement
from pallas_gateway.composition.features import FEATURES
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.core.agent_state import State
from pallas_gateway.core.gateway import Gateway
from pallas_gateway.urls import Addresses
from tests.support.configuration import load_deployment
from tests.support.memory_runtime import MemoryAgent, MemoryAgentRuntime, MemoryRuntime

type Announced = Callable[[Gateway], list[str]]
REGISTRY = "/.well-known/mcp/server.json"


def gateway_of(
    *, up: Mapping[str, bool], overrides: Overrides | None = None, name_of_host: str = "localhost", **settings: Any
) -> Gateway:
    agents = {name: {"module": name, "port": port} for port, name in enumerate(up, start=24201)}
    Path("agents.yaml").write_text(
        yaml.safe_dump({"name": "test", "host": name_of_host, "agents": agents, "gateway": settings}, sort_keys=False)
    )
    configuration = load_deployment(Path("agents.yaml"), environ={}, overrides=overrides or Overrides())
    gateway = Gateway(configuration, Addresses(configuration), MemoryRuntime({}), features=FEATURES)
    for name, agent in gateway.agents.items():
        if up[name]:
            agent.set_state(State.READY, runtime=MemoryAgentRuntime(MemoryAgent()))
        else:
            agent.set_state(State.FAILED, reason="no key")
    return gateway


@pytest.fixture
def lines(folder: Path) -> Announced:
    return lambda gateway: announcement(gateway).splitlines()


def test_all_agents_up_are_a_table_a_registry_and_a_command(lines: Announced) -> None:
    assert lines(gateway_of(up={"jarvis": True, "a": True})) == [
        "AGENT    STATE   URL",
        "jarvis   ready   http://localhost:24200/agents/jarvis/mcp",
        "a        ready   http://localhost:24200/agents/a/mcp",
        "",
        f"Registry:   http://localhost:24200{REGISTRY}",
        "All agents: http://localhost:24200/mcp",
        "Console:    http://localhost:24200/console/",
        "Talk:       pallas-gateway chat jarvis",
        "Try:        pallas-gateway call jarvis 'Hello'",
    ]


@pytest.mark.parametrize(
    ("settings", "base"),
    [
        ({}, "http://localhost:24200"),
        ({"host": "0.0.0.0", "console": True}, "http://box.example.com:24200"),  # noqa: S104  read, never bound
        ({"public_url": "https://agents.example.com"}, "https://agents.example.com"),
    ],
)
def test_the_address_of_the_console_opens(lines: Announced, settings: Mapping[str, Any], base: str) -> None:
    assert f"Console:    {base}/console/" in lines(
        gateway_of(up={"a": True}, name_of_host="box.example.com", **settings)
    )


def test_the_command_names_an_agent_that_is_up(lines: Announced) -> None:
    printed = lines(gateway_of(up={"broken": False, "well": True}))
    assert printed[3:5] == ["", "broken: no key"]
    assert printed[-1] == "Try:        pallas-gateway call well 'Hello'"


def test_without_an_agent_that_is_up_there_is_nothing_to_try(lines: Announced) -> None:
    assert lines(gateway_of(up={"broken": False}))[-1].startswith("Console: ")


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"port": 8080}, " --url http://localhost:8080"),
        ({"host": "0.0.0.0"}, ""),  # noqa: S104  read, never bound
        ({"host": "::1"}, " --url http://[::1]:24200"),
        ({"public_url": "https://agents.example.com"}, ""),
        ({"host": "10.0.0.7", "public_url": "https://agents.example.com"}, " --url https://agents.example.com"),
        ({"tls": {"certfile": "cert.pem", "keyfile": "cert.pem"}}, " --url https://localhost:24200"),
        ({"per_port": True}, ""),
    ],
)
def test_the_command_reaches_the_gateway_from_this_machine(
    lines: Announced, folder: Path, settings: dict[str, Any], option: str
) -> None:
    (folder / "cert.pem").touch()
    assert lines(gateway_of(up={"a": True}, **settings))[-2:] == [
        f"Talk:       pallas-gateway chat a{option}",
        f"Try:        pallas-gateway call a 'Hello'{option}",
    ]


SIGNS_IN = {
    "console_client_id": "pallas",
    "jwt": {"issuer": "https://login.example.com", "jwks_uri": "https://login.example.com/jwks"},
}


def test_the_commands_have_the_url_at_which_people_can_sign_in(lines: Announced) -> None:
    url = "https://agents.example.com/x"
    assert lines(gateway_of(up={"a": True}, public_url=url, auth=SIGNS_IN))[-3:] == [
        f"Sign in:    pallas-gateway login --url {url}",
        f"Talk:       pallas-gateway chat a --url {url}",
        f"Try:        pallas-gateway call a 'Hello' --url {url}",
    ]


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (
            {"console_client_id": "pallas"},
            [
                "Sign in:    pallas-gateway login --url http://localhost:24200",
                "Talk:       pallas-gateway chat a",
                "Try:        pallas-gateway call a 'Hello'",
            ],
        ),
        (
            {},
            [
                "Talk:       pallas-gateway chat a --bearer TOKEN",
                "Try:        pallas-gateway call a 'Hello' --bearer TOKEN",
            ],
        ),
    ],
    ids=["sign-in", "token"],
)
def test_people_are_told_how_to_be_known(lines: Announced, client: dict[str, str], expected: list[str]) -> None:
    printed = lines(gateway_of(up={"a": True}, auth={"jwt": SIGNS_IN["jwt"], **client}))
    assert printed[printed.index("Console:    http://localhost:24200/console/") + 1 :] == expected


def test_one_agent_alone_has_no_registry(lines: Announced) -> None:
    assert lines(gateway_of(up={"a": True, "b": True}, overrides=Overrides(agent="b"))) == [
        "AGENT   STATE   URL",
        "b       ready   http://localhost:24202/mcp",
    ]


@pytest.mark.parametrize("settings", [{"console": False}, {"host": "0.0.0.0"}])  # noqa: S104  read, never bound
def test_a_console_that_is_off_is_not_printed(lines: Announced, settings: dict[str, Any]) -> None:
    assert not any(line.startswith("Console:") for line in lines(gateway_of(up={"a": True}, **settings)))


@pytest.mark.parametrize(
    ("only", "settings", "base"),
    [
        (None, {}, "http://localhost:24200"),
        (None, {"public_url": "https://agents.example.com/x"}, "https://agents.example.com/x"),
        (None, {"per_port": True}, "http://localhost:24200"),
        ("b", {}, "http://localhost:24202"),
    ],
)
def test_openai_clients_are_told_their_base_url(
    lines: Announced, only: str | None, settings: dict[str, Any], base: str
) -> None:
    gateway = gateway_of(up={"a": True, "b": True}, overrides=Overrides(agent=only), openai_api=True, **settings)
    assert f"OpenAI:     {base}/v1" in lines(gateway)
