"""What a server's declaration says about the caller's token, as the runtime finds it in fast-agent's settings."""

from collections.abc import Mapping
from typing import Any

import pytest
from fast_agent.config import Settings

from pallas_gateway.config.model.downstreams import ProcessSettings
from pallas_gateway.errors import AgentStartError
from pallas_gateway.identity.secret import Secret
from pallas_gateway.identity.token_exchange import TokenExchange
from pallas_gateway.runtime.protocols import Downstream
from pallas_gateway.runtime.settings.hosting import prepare_servers

URL = "https://notes.example/mcp"
ENDPOINT = "https://login.example/token"
EXCHANGE = {"token_endpoint": ENDPOINT}


def prepared(*, peers: Mapping[str, str] | None = None, url: str | None = URL, **server: Any) -> Downstream:
    """The one server of a configuration, prepared."""
    declared = {"url": url, **server} if url else server
    settings = Settings.model_validate({"mcp": {"servers": {"notes": declared}}})
    return prepare_servers(settings, peers or {})["notes"]


@pytest.mark.parametrize(
    ("server", "forwards"),
    [
        ({}, False),
        ({"forward_inbound_auth": True}, True),
        ({"forward_inbound_auth": "true"}, True),  # fast-agent hands an expanded variable over as text
        ({"forward_inbound_auth": "false"}, False),
        ({"forward_inbound_auth": False}, False),
        ({"auth": {"forward": "huggingface"}}, True),
        ({"forward_inbound_auth": True, "headers": {"x-team": "blue"}}, True),
        ({"forward_inbound_auth": True, "headers": {"AUTHORIZATION": "Bearer own"}}, False),
        ({"forward_inbound_auth": True, "headers": {"X-HF-Authorization": "Bearer own"}}, False),
        ({"forward_inbound_auth": True, "url": "https://user:password@tools.example.com/mcp"}, False),
        ({"forward_inbound_auth": True, "access_token": "own"}, False),
    ],
)
def test_the_callers_token_goes_to_marked_servers_without_credentials_of_their_own(
    server: Mapping[str, Any], forwards: bool
) -> None:
    assert prepared(**server).forwards_bearer is forwards


@pytest.mark.parametrize(("server", "seconds"), [({}, 60), ({"listing_seconds": 5}, 5), ({"listing_seconds": "0"}, 0)])
def test_listings_of_callers_are_kept_for_a_minute_or_as_configured(server: Mapping[str, Any], seconds: float) -> None:
    assert prepared(forward_inbound_auth=True, **server).listing_seconds == seconds


def test_without_a_token_exchange_there_is_none() -> None:
    assert prepared(forward_inbound_auth=True).token_exchange is None


def test_a_token_exchange_becomes_a_value_of_its_server() -> None:
    exchange = {
        "token_endpoint": ENDPOINT,
        "client_id": "pallas",
        "client_secret": "s3cret",
        "client_auth": "post",
        "audience": "notes",
        "resource": "urn:notes",
        "scope": "read",
    }
    downstream = prepared(forward_inbound_auth=True, token_exchange=exchange)
    secret = Secret("s3cret")
    assert downstream.token_exchange == TokenExchange(
        "notes", ENDPOINT, "urn:notes", "notes", "read", "pallas", secret, "post"
    )
    assert "s3cret" not in repr(downstream)


@pytest.mark.parametrize(
    ("url", "resource"),
    [
        ("https://notes.example/mcp", "https://notes.example/mcp"),
        ("https://notes.example", "https://notes.example/mcp"),
        ("https://notes.example:8443/mcp?key=s3cret#top", "https://notes.example:8443/mcp"),
    ],
)
def test_the_resource_is_the_servers_address_without_its_credentials(url: str, resource: str) -> None:
    downstream = prepared(url=url, forward_inbound_auth=True, token_exchange=EXCHANGE)
    assert downstream.token_exchange is not None
    assert downstream.token_exchange.resource == resource


def test_the_resource_of_a_peer_is_its_documented_address() -> None:
    downstream = prepared(peers={URL: "notes"}, forward_inbound_auth=True, token_exchange=EXCHANGE)
    assert downstream.token_exchange is not None
    assert (downstream.peer, downstream.token_exchange.resource) == ("notes", URL)


def test_processes_are_those_of_the_servers_declaration() -> None:
    program = prepared(url=None, command="uvx", warm="3", shared=True).program
    assert program is not None
    assert program.processes == ProcessSettings(warm=3, shared=True)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"token_exchange": None}, "Forwarding: in token_exchange.token_endpoint, Field required"),
        ({"token_exchange": False}, "Forwarding: in token_exchange, "),
        ({"token_exchange": {**EXCHANGE, "scopes": "s3cret"}}, "Forwarding: in token_exchange.scopes, "),
        (
            {"token_exchange": {**EXCHANGE, "client_id": "a", "client_secret": "${S3CRET}"}},
            "Forwarding: in token_exchange.client_secret, environment variable S3CRET is not set",
        ),
        ({"forward_inbound_auth": "s3cret"}, "Forwarding: in forward_inbound_auth, "),
        ({"forward_inbound_auth": False, "token_exchange": EXCHANGE}, "token_exchange requires "),
        ({"headers": {"Authorization": "s3cret"}, "token_exchange": EXCHANGE}, "token_exchange is "),
        ({"auth": {"forward": "huggingface"}, "token_exchange": EXCHANGE}, "token_exchange cannot "),
        ({"url": None, "command": "uvx", "token_exchange": EXCHANGE}, "token_exchange is only for"),
        ({"warm": 2}, "warm: only for stdio servers"),
        ({"url": None, "command": "uvx", "shared": "maybe"}, "ProcessSettings: in shared, "),
    ],
)
def test_an_agent_does_not_start_with_keys_of_the_gateway_that_are_wrong(
    server: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(AgentStartError) as caught:
        prepared(**{"forward_inbound_auth": True, **server})
    assert str(caught.value).startswith(f"server 'notes': {message}")
    assert "s3cret" not in str(caught.value)
    assert caught.value.reason == "start_failed"
