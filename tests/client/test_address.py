"""Which gateway the client commands ask."""

import json
from pathlib import Path

import pytest

from pallas_gateway.client.address import DEFAULT_URL, gateway_url
from pallas_gateway.client.arguments import UsageError
from tests.support.commands import Command, Program
from tests.support.listener import reserved_port

FROM_FILE = {
    "name: x\nagents: {}\n": DEFAULT_URL,
    "registry_port: 25000\n": "http://localhost:25000",
    "registry_port: 25000\ngateway: {port: 25001}\n": "http://localhost:25001",
    "registry_port: 25000\ngateway: {port: 25001, per_port: true}\n": "http://localhost:25000",
    "gateway: {host: 0.0.0.0, public_url: 'https://agents.example.com'}\n": DEFAULT_URL,
    "gateway: {host: '::1'}\n": "http://[::1]:24200",
    "gateway: {host: 192.0.2.1, public_url: 'https://agents.example.com/'}\n": "https://agents.example.com",
    "host: box\ngateway: {tls: {certfile: cert.pem, keyfile: key.pem}}\n": "https://box:24200",
    "agents: {echo: {modul: no}}\nunknown: 1\ngateway: {port: 25001, prot: 1}\n": "http://localhost:25001",
    "gateway: {port: '${OTHER_PORT}'}\n": "http://localhost:25002",
}


@pytest.mark.parametrize("text", FROM_FILE)
def test_the_address_is_that_of_agents_yaml_in_the_working_directory(
    text: str, run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del run  # clears the variables
    monkeypatch.setenv("OTHER_PORT", "25002")
    (folder / "agents.yaml").write_text(text)
    assert gateway_url(None) == FROM_FILE[text]


def test_without_agents_yaml_it_is_the_default(run: Command, folder: Path) -> None:
    del run, folder
    assert gateway_url(None) == DEFAULT_URL


UNKNOWN = {
    "gateway: {port: 0}\n": "agents.yaml:1: gateway.port: 0 takes any port. ",
    "\ngateway: {port: '${NOT_SET_HERE}'}\n": "agents.yaml:2: gateway.port: must be a whole number",
    "- a\n": "agents.yaml: must be a mapping of keys. ",
    "a: [\n": "agents.yaml:",
}


@pytest.mark.parametrize("text", UNKNOWN)
def test_an_address_that_the_file_does_not_tell_is_asked_for(text: str, run: Command, folder: Path) -> None:
    del run
    (folder / "agents.yaml").write_text(text)
    with pytest.raises(UsageError) as error:
        gateway_url(None)
    assert str(error.value).startswith(UNKNOWN[text])
    assert str(error.value).endswith("The gateway's address is not known; give it with --url or PALLAS_GATEWAY_URL.")


def test_the_option_wins_over_the_variable_and_that_over_the_file(
    run: Command, folder: Path, gateway: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "agents.yaml").write_text("gateway: {port: 0}\n")
    monkeypatch.setenv("PALLAS_GATEWAY_URL", gateway.url)
    assert run("agents").code == 0
    monkeypatch.setenv("PALLAS_GATEWAY_URL", "http://127.0.0.1:9")
    assert run("agents", "--url", gateway.url).code == 0
    monkeypatch.delenv("PALLAS_GATEWAY_URL")
    (folder / ".env").write_text(f"PALLAS_GATEWAY_URL={gateway.url}\n")
    assert run("agents").code == 0


COMMANDS = [
    ["agents", "--json"],
    ["health", "echo"],
    ["call", "echo", "hi"],
    ["chat", "echo", "-m", "hi", "--db", ":memory:"],
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_client_command_asks_the_gateway_of_agents_yaml(
    command: list[str], run: Command, folder: Path, gateway: Program
) -> None:
    port = gateway.url.rpartition(":")[2]
    (folder / "agents.yaml").write_text(f"gateway: {{port: {port}}}\n")
    assert run(*command).code == 0
    with reserved_port() as other:
        (folder / "agents.yaml").write_text(json.dumps({"gateway": {"port": other}}))
        ran = run(*command)
    assert ran.code == 1
    assert f"http://localhost:{other}" in ran.err
