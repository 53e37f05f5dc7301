"""What `serve` and `check` say about who is let in: which configurations are warned about, and where."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from pallas_gateway.cli.check_exposure import exposure_warnings
from pallas_gateway.config.loading.configuration import EVERYWHERE
from pallas_gateway.config.loading.loader import Overrides
from tests.support.certificates import TLS_FILES
from tests.support.configuration import load_deployment

JWT = {"issuer": "https://login.example.com", "jwks_uri": "https://login.example.com/jwks"}
REACHABLE = {"public_url": "https://agents.example.com"}


def warned(
    overrides: Overrides | None = None,
    servers: dict[str, Any] | None = None,
    now: datetime | None = None,
    **document: Any,
) -> list[str]:
    """`kind path:line` of every warning for two agents, a and b."""
    agents = {name: {"module": name, "port": port} for port, name in enumerate("ab", start=24201)}
    whole = {"name": "test", "agents": agents, **document}
    Path("agents.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    Path("fastagent.config.yaml").write_text(yaml.safe_dump({"mcp": {"servers": servers or {}}}))
    configuration = load_deployment(Path("agents.yaml"), environ={}, overrides=overrides or Overrides())
    return [f"{door.kind} {door.path}:{door.line}" for door in exposure_warnings(configuration, now)]


@pytest.fixture(autouse=True)
def _folder(folder: Path) -> None:
    """A working directory of the test's own."""


@pytest.mark.parametrize("host", [None, "127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_a_gateway_of_this_machine_alone_needs_no_authentication(host: str | None) -> None:
    assert warned(gateway={"host": host} if host else {}) == []


@pytest.mark.parametrize(
    ("auth", "found"),
    [
        (None, ["open gateway.auth:10"]),
        ({"anonymous": ["run:agents"]}, ["open_to_anonymous gateway.auth.anonymous:13"]),
        ({"anonymous": ["run:agents:b"]}, ["open_to_anonymous gateway.auth.anonymous:13"]),
        ({"anonymous": ["view:agents", "view:metrics"]}, []),
        ({"tokens": [{"name": "ci", "sha256": "a" * 64, "grants": ["run:agents"]}]}, []),
        ({"jwt": JWT}, []),
    ],
)
def test_who_listens_elsewhere_is_told_when_anybody_may_run_agents(auth: object, found: list[str]) -> None:
    gateway = {"host": "10.0.0.7", **REACHABLE, **({"auth": auth} if auth else {})}
    assert warned(gateway=gateway) == found


def test_an_agent_that_is_not_served_is_not_open() -> None:
    gateway = {"host": "10.0.0.7", "auth": {"anonymous": ["run:agents:b"]}}
    assert warned(Overrides(agent="a"), host="agents.example.com", gateway=gateway) == []


def test_urls_of_localhost_are_no_use_to_clients_elsewhere() -> None:
    gateway = {"host": EVERYWHERE, "auth": {"jwt": JWT}}
    assert warned(gateway=gateway) == ["local_urls gateway.public_url:10"]
    assert warned(host="agents.example.com", gateway=gateway) == []
    assert warned(gateway={**gateway, **REACHABLE}) == []


def test_urls_of_agents_on_their_own_ports_come_from_the_top_level_host() -> None:
    gateway = {"auth": {"jwt": JWT}, "public_url": "http://agents.example.com"}
    assert warned(Overrides(per_port=True), gateway=gateway) == ["local_urls_per_port host:None"]
    assert warned(Overrides(per_port=True), host="agents.example.com", gateway=gateway) == []


def test_urls_of_a_host_that_is_not_bound_reach_nothing() -> None:
    assert warned(host="agents.example.com") == ["unbound_urls host:9"]
    assert warned(Overrides(host="localhost"), host="agents.example.com") == ["unbound_urls host:9"]
    assert warned(host="agents.example.com", gateway=REACHABLE) == []
    assert warned(host="localhost", gateway={"host": "127.0.0.1"}) == []
    reachable = {"host": EVERYWHERE, "auth": {"jwt": JWT}}
    assert warned(host="agents.example.com", gateway=reachable) == []


def test_urls_of_agents_on_their_own_ports_reach_nothing_either_where_only_loopback_is_bound() -> None:
    gateway = {"host": "127.0.0.1", **REACHABLE}
    assert warned(Overrides(per_port=True), host="box", gateway=gateway) == [
        "unbound_urls_per_port host:9",
        "plain_urls gateway.public_url:12",
    ]
    assert warned(Overrides(per_port=True), host="box", gateway={"auth": {"jwt": JWT}}) == []


def test_who_believes_everybody_is_told_which_proxies_are_too_many() -> None:
    gateway = {**REACHABLE, "trusted_proxies": ["0.0.0.0/0", "10.0.0.0/8", "2000::/3", "fc00::/7", "::1"]}
    found = [f"believes_all gateway.trusted_proxies.{index}:{line}" for index, line in ((0, 12), (2, 14))]
    assert warned(gateway=gateway) == found


@pytest.mark.parametrize("host", ["127.0.0.1", EVERYWHERE])
def test_behind_a_proxy_the_public_url_has_to_be_said(host: str) -> None:
    gateway = {"host": host, "trusted_proxies": ["127.0.0.1"], "auth": {"jwt": JWT}}
    assert warned(gateway=gateway) == ["own_urls gateway.public_url:11"]
    assert warned(gateway={**gateway, **REACHABLE}) == []


def test_https_in_front_of_agents_on_ports_of_their_own_does_not_show_in_their_urls() -> None:
    gateway = {"host": "127.0.0.1", **REACHABLE}
    assert warned(Overrides(per_port=True), gateway=gateway) == ["plain_urls gateway.public_url:11"]
    assert warned(Overrides(per_port=True), gateway={**gateway, "public_url": "http://agents.example.com"}) == []
    with_tls = {**gateway, "tls": TLS_FILES}
    for name in TLS_FILES.values():
        Path(name).touch()
    assert warned(Overrides(per_port=True), gateway=with_tls) == []


def test_a_closed_door_and_a_key_that_opens_none_are_told() -> None:
    assert warned(gateway={"auth": {}}) == ["closed gateway.auth:10"]
    keys = [{"name": "ci", "sha256": "a" * 64, "grants": ["view:metrics"]}, {"name": "idle", "sha256": "b" * 64}]
    assert warned(gateway={"auth": {"tokens": keys}}) == ["idle_key gateway.auth.tokens.1:16"]


def test_another_agent_is_a_peer_only_where_it_is_served() -> None:
    servers = {
        name: {"url": f"http://localhost:{port}/mcp", "forward_inbound_auth": True}
        for port, name in enumerate("ab", start=24201)
    }
    gateway = {"host": "127.0.0.1", "auth": {"jwt": JWT}}
    assert warned(servers=servers, gateway=gateway) == []
    assert warned(Overrides(agent="a"), servers=servers, gateway=gateway) == ["handed_on mcp.servers.b:6"]


def test_a_server_is_given_no_token_where_callers_have_static_keys_alone() -> None:
    servers = {
        "notes": {"url": "https://notes.example.com/mcp", "forward_inbound_auth": True},
        "own": {
            "url": "https://own.example.com/mcp",
            "forward_inbound_auth": True,
            "headers": {"Authorization": "Bearer own"},
        },
    }
    keys = [{"name": "ci", "sha256": "a" * 64, "grants": ["run:agents"]}]

    assert warned(servers=servers, gateway={"auth": {"tokens": keys}}) == ["not_forwarded mcp.servers.notes:3"]
    assert warned(servers=servers, gateway={"auth": {"tokens": keys, "jwt": JWT}}) == ["handed_on mcp.servers.notes:3"]


@pytest.mark.parametrize(
    ("not_after", "found"),
    [
        ("2026-05-31", ["expired_key gateway.auth.tokens.0.not_after:16"]),
        ("2026-06-01T11:59:59Z", ["expired_key gateway.auth.tokens.0.not_after:16"]),
        ("2026-06-01", ["ending_key gateway.auth.tokens.0.not_after:16"]),
        ("2026-06-14", ["ending_key gateway.auth.tokens.0.not_after:16"]),
        ("2026-06-15", []),
        (None, []),
    ],
)
def test_keys_that_have_expired_or_soon_will_are_named(not_after: str | None, found: list[str]) -> None:
    key = {
        "name": "ci",
        "sha256": "a" * 64,
        "grants": ["run:agents"],
        **({"not_after": not_after} if not_after else {}),
    }
    assert warned(gateway={"auth": {"tokens": [key]}}, now=datetime(2026, 6, 1, 12, tzinfo=UTC)) == found
