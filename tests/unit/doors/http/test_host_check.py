"""The check of Host and Origin: each form of a name, and the refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.loading.fastagent_file import FastAgentFile
from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.config.model.deployment import Deployment, GatewaySettings
from pallas_gateway.doors.http.host_check import HostCheck
from tests.support.asgi import AsgiClient, answering, piece


def guard(**deployment: Any) -> HostCheck:
    of = Deployment(name="test", agents={"echo": AgentSettings(module="echo")}, **deployment)
    return HostCheck(answering(200), Configuration(of, Path("agents.yaml"), {}, FastAgentFile()))


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("[fd00::1]:24200", None, 200),
        ("[FD00::1]", None, 200),
        ("[fd00::2]:24200", None, 421),
        ("192.0.2.1:24200", None, 200),
        ("192.0.2.2:24200", None, 421),
        ("[fd00::1]:24200", "http://[fd00::1]:24200", 200),
        ("[fd00::1]:24200", "https://[fd00::1]", 200),
        ("localhost:evil.example", None, 421),
        ("localhost:80:80", None, 421),
        ("user@localhost:80", None, 421),
        ("192.0.2.1:24200", "http://localhost:evil.example", 403),
        ("192.0.2.1:24200", "http://localhost:80@evil.example", 403),
        ("192.0.2.1:24200", "http://localhost:80.evil.example", 403),
        ("192.0.2.1:24200", "http://localhost:5173/", 200),
        ("[fd00::1]:24200", "http://[::1]:5173", 200),
        ("[fd00::1]:24200", "http://[fd00::2]:24200", 403),
        ("[fd00::1]:24200", "http://:", 403),
        ("localhost:24200", "http://localhost", 200),
        ("localhost:24200", "tauri://localhost", 403),
        ("localhost:24200", "chrome-extension://localhost", 403),
    ],
)
async def test_addresses_of_either_family_are_guarded_like_names(host: str, origin: str | None, status: int) -> None:
    client = AsgiClient([piece(more=False)], host=host, **({"origin": origin} if origin else {}))
    await guard(host="fd00::1")(client.scope, client.receive, client.send)

    assert client.status == status


@pytest.mark.parametrize(
    ("allowed", "origin", "status"),
    [
        *(("http://*.wild.example", f"http://evil.example{one}.wild.example", 403) for one in "#?\\\t "),
        *((one, "app://localhost", 200) for one in ("app://localhost", "*", "app://*")),
    ],
)
async def test_a_pattern_matches_another_scheme_but_no_host_that_another_reader_takes_for_a_different_one(
    allowed: str, origin: str, status: int
) -> None:
    client = AsgiClient([piece(more=False)], host="localhost", origin=origin)
    app = guard(gateway=GatewaySettings(allowed_origins=(allowed,)))
    await app(client.scope, client.receive, client.send)
    assert client.status == status


@pytest.mark.parametrize(
    ("headers", "status", "says", "setting"),
    [
        ({"host": "evil.example"}, 421, "Host 'evil.example' is not one this gateway answers to", "allowed_hosts"),
        (
            {"host": "localhost", "origin": "https://evil.example"},
            403,
            "Origin 'https://evil.example' is not one this gateway answers to",
            "allowed_origins",
        ),
    ],
)
async def test_a_refused_name_is_told_with_its_setting_and_logged_once(
    headers: dict[str, str], status: int, says: str, setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = guard()
    for _ in range(3):
        client = AsgiClient([piece(more=False)], **headers)
        await app(client.scope, client.receive, client.send)
        assert client.status == status
        body = b"".join(message.get("body", b"") for message in client.sent)
        assert json.loads(body) == {"error": f"{says}; it can be added to gateway.{setting}"}

    told = [vars(record) for record in caplog.records if record.name == "pallas.web"]
    assert [(record["why"], record["setting"]) for record in told] == [(says, f"gateway.{setting}")]
