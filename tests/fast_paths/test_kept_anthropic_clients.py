"""Turns with Claude share a client; test_kept_clients.py shows which clients are kept, and until when."""

from fast_agent.llm.provider_types import Provider

from pallas_gateway.changes.registry import registry
from tests.support.loaded_providers import http_of, make_client


async def test_two_turns_with_claude_have_one_client_with_open_sockets() -> None:
    one, other = make_client(Provider.ANTHROPIC), make_client(Provider.ANTHROPIC)

    assert http_of(one) is http_of(other)
    assert http_of(one).headers["Connection"] == "keep-alive"
    await registry().close()
