"""Where agents are: for clients, for the gateway itself, and as projects write their peers' addresses."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pallas_gateway.config.loading.configuration import EVERYWHERE
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.urls import ALL_AGENTS, Addresses
from tests.support.configuration import load_deployment

AGENTS = {"search": {"module": "agents.search", "port": 24201}, "tech_research": {"module": "agents.tech"}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def addresses(
    *,
    bound: int | None = None,
    overrides: Overrides | None = None,
    host: str = "localhost",
    **gateway: object,
) -> Addresses:
    agents = dict(AGENTS) if not gateway.get("per_port") else {"search": AGENTS["search"]}
    document = {"name": "test", "host": host, "agents": agents, "gateway": gateway}
    Path("agents.yaml").write_text(yaml.safe_dump(document))
    configuration = load_deployment(Path("agents.yaml"), environ={}, overrides=overrides or Overrides())
    return Addresses(configuration.with_bound_port(bound) if bound else configuration)


def tls() -> dict[str, str]:
    for name in ("cert.pem", "key.pem"):
        Path(name).touch()
    return {"certfile": "cert.pem", "keyfile": "key.pem"}


def test_in_single_port_mode_every_agent_is_on_the_gateways_port() -> None:
    one = addresses(host="agents.example.com")
    assert one.registry_port == 24200
    assert one.public("search") == "http://agents.example.com:24200/agents/search/mcp"
    assert one.public("tech_research") == "http://agents.example.com:24200/agents/tech_research/mcp"


def test_a_port_that_was_free_to_choose_is_the_one_that_was_bound() -> None:
    one = addresses(bound=43210, port=0)
    assert one.registry_port == 43210
    assert one.public("search") == "http://localhost:43210/agents/search/mcp"
    assert one.peers(["search"])["http://localhost:43210/agents/search/mcp"] == "search"


@pytest.mark.parametrize(
    ("url", "absent"),
    [
        ("http://localhost:24200/agents/ghost/mcp", "ghost"),
        ("http://127.0.0.1:24200/agents/Gh%6fst/mcp/", "Ghost"),
        ("https://agents.example.com/pallas/agents/ghost/mcp", "ghost"),
        ("http://gateway.internal:8080/agents/ghost/mcp", "ghost"),
        ("http://localhost:24200/agents/search/mcp", None),
        ("http://localhost:24200/mcp", None),
        ("http://localhost:9/agents/ghost/mcp", None),
        ("https://elsewhere.example.com/agents/ghost/mcp", None),
    ],
)
@pytest.mark.parametrize("per_port", [False, True])
def test_urls_of_servers_that_are_agents_of_this_gateway_which_no_file_has(
    url: str, absent: str | None, *, per_port: bool
) -> None:
    Path("fastagent.config.yaml").write_text(yaml.safe_dump({"mcp": {"servers": {"one": {"url": url}}}}))
    public, hosts = "https://agents.example.com/pallas", ["gateway.internal"]
    found = addresses(per_port=per_port, public_url=public, allowed_hosts=hosts).absent()
    assert found == ({} if absent is None or per_port else {"one": absent})


def test_addresses_of_peers_are_made_once_for_all_agents() -> None:
    one = addresses()
    assert one.peers(["search"]) is one.peers(["search"])
    assert one.peers(["search"]) != one.peers(["search", "tech_research"])


@pytest.mark.parametrize("per_port", [False, True])
def test_agent_that_is_not_there_is_named_as_a_resource_without_an_error(per_port: bool) -> None:
    one = addresses(per_port=per_port, host="agents.example.com")
    assert one.resource("nobody") == "http://agents.example.com:24200/agents/nobody/mcp"


@pytest.mark.parametrize(
    ("host", "how"),
    [("agents.example.com", {"per_port": True}), ("localhost", {"overrides": Overrides(agent="search")})],
)
def test_in_per_port_mode_and_alone_an_agent_is_on_its_own_port(host: str, how: dict[str, Any]) -> None:
    one = addresses(host=host, **how)
    assert one.public("search") == f"http://{host}:24201/mcp"
    assert one.peers(["search"])["http://localhost:24201/mcp"] == "search"


def test_the_public_url_is_what_clients_see_and_an_address_of_peers_too() -> None:
    one = addresses(public_url="https://agents.example.com/pallas")
    assert one.public("search") == "https://agents.example.com/pallas/agents/search/mcp"
    assert one.peers(["search"])["https://agents.example.com/pallas/mcp"] == ALL_AGENTS
    assert one.peers(["search"])[one.public("search")] == "search"


def test_with_tls_clients_see_https() -> None:
    assert addresses(tls=tls()).public("search") == "https://localhost:24200/agents/search/mcp"
    one = addresses(tls=tls(), per_port=True)
    assert one.public("search") == "https://localhost:24201/mcp"
    assert one.peers(["search"])["https://localhost:24201/mcp"] == "search"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", EVERYWHERE, "[::1]", "agents.example.com", "10.0.0.7"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("place", ["24201/mcp", "24200/agents/search/mcp"])
def test_a_peer_is_known_by_every_documented_address(scheme: str, host: str, place: str) -> None:
    peers = addresses(host="agents.example.com", overrides=Overrides(host="10.0.0.7")).peers(["search"])
    assert peers[f"{scheme}://{host}:{place}"] == "search"


@pytest.mark.parametrize(
    "url",
    [
        "http://other.example.com:24201/mcp",
        "http://localhost:24202/mcp",
        "http://localhost:24201/sse",
        "http://localhost:24200/",
        "http://localhost:24200/agents/other/mcp",
    ],
)
def test_another_address_is_nobodys(url: str) -> None:
    assert url not in addresses(host="agents.example.com").peers(["search", "tech_research"])


def test_an_agent_without_a_port_is_known_by_its_path_alone() -> None:
    peers = addresses().peers(["tech_research"])
    assert "http://localhost:24200/agents/tech_research/mcp" in peers
    assert all("/agents/tech_research/" in url for url, name in peers.items() if name == "tech_research")


def test_only_hosted_agents_are_peers() -> None:
    assert set(addresses().peers(["search"]).values()) == {"search", ALL_AGENTS}


def test_per_port_nobody_is_all_agents_and_an_agents_own_address_is_never_that_of_all() -> None:
    assert ALL_AGENTS not in addresses(per_port=True).peers(["search"]).values()
    assert addresses(port=24201).peers(["search"])["http://localhost:24201/mcp"] == "search"


def test_an_ipv6_host_is_bracketed() -> None:
    one = addresses(host="::1")
    assert one.public("search") == "http://[::1]:24200/agents/search/mcp"
    assert "http://[::1]:24201/mcp" in one.peers(["search"])


@pytest.mark.parametrize(
    ("public_url", "reference", "absolute"),
    [
        (None, "icons/a.png", "http://localhost:24200/icons/a.png"),
        (None, "/icons/a.png", "http://localhost:24200/icons/a.png"),
        ("https://a.example.com", "a.svg", "https://a.example.com/a.svg"),
        ("https://a.example.com/pallas", "a.svg", "https://a.example.com/pallas/a.svg"),
        ("https://a.example.com/pallas", "https://b.example.com/b.svg", "https://b.example.com/b.svg"),
        (None, "data:image/png;base64,aGk=", "data:image/png;base64,aGk="),
    ],
)
def test_a_relative_reference_belongs_to_the_public_address(
    public_url: str | None, reference: str, absolute: str
) -> None:
    assert addresses(public_url=public_url).absolute(reference) == absolute


def test_a_peer_is_a_server_at_an_address_that_leads_to_it() -> None:
    one = addresses(bound=9000)
    assert one.servers(["search", "gone"]) == {"search": "http://localhost:9000/agents/search/mcp"}
    assert one.peers(["search"])[one.servers(["search"])["search"]] == "search"


def test_with_agent_alone_a_peer_is_a_server_at_its_documented_address_if_it_has_one(folder: Path) -> None:
    agents = {"lead": {"module": "m", "port": 8201}, "search": {"module": "m", "port": 8202}, "tech": {"module": "m"}}
    document = {"name": "test", "host": "agents.example.com", "agents": agents}
    (folder / "agents.yaml").write_text(yaml.safe_dump(document))
    one = Addresses(load_deployment(folder / "agents.yaml", environ={}, overrides=Overrides(agent="lead")))
    assert one.servers(["search", "tech"]) == {"search": "http://agents.example.com:8202/mcp"}
