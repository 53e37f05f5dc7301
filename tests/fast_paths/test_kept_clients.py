"""Which HTTP clients of LLM turns are kept, and until when."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fast_agent.llm.provider_types import Provider
from fast_agent.mcp.auth.context import request_bearer_token

from pallas_gateway.changes.registry import registry
from pallas_gateway.fast_paths import _kept, kept_anthropic_clients
from tests.support.loaded_providers import http_of, load, make_client
from tests.support.pairs import pairs


class FakeClient:
    """Stands for a provider's client."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.is_closed = False
        self._client = httpx2.AsyncClient()

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of a provider as fast-agent has them, with its clients kept."""
    monkeypatch.setattr(kept_anthropic_clients, "aio_client", lambda: "of its own")
    return SimpleNamespace(AsyncAnthropic=kept_anthropic_clients.changed(FakeClient, None))


async def test_a_client_is_kept_for_its_settings(provider: Any) -> None:
    one, other = provider.AsyncAnthropic(api_key="a"), provider.AsyncAnthropic(api_key="b")

    assert provider.AsyncAnthropic(api_key="a") is one is not other
    await _kept.close_clients()


@dataclass
class Credentials:
    value: str


@pairs(
    {
        "bearer": ["of-the-caller", "a\ttab", "quo'te\"s", "\ud800", "back\\slash", "\u00fcml\u00e4ut"],
        "settings_with": [
            lambda bearer: {"api_key": bearer},
            lambda bearer: {"api_key": "", "default_headers": {"authorization": f"Bearer {bearer}"}},
            lambda bearer: {"api_key": Credentials(bearer)},
            lambda bearer: {"api_key": "", "default_headers": [("x", bearer.encode(errors="surrogatepass"))]},
        ],
    }
)
async def test_a_client_made_with_the_callers_token_is_not_kept(
    provider: Any, bearer: str, settings_with: Callable[[str], dict[str, Any]]
) -> None:
    token = request_bearer_token.set(bearer)
    try:
        mine = provider.AsyncAnthropic(**settings_with(bearer))
        assert provider.AsyncAnthropic(**settings_with(bearer)) is not mine
    finally:
        request_bearer_token.reset(token)


async def test_a_client_with_an_http_client_of_the_providers_making_is_not_kept(provider: Any) -> None:
    given = object()  # GitHub Copilot's, made for each turn and changed after it

    made = provider.AsyncAnthropic(api_key="", http_client=given)

    assert made.settings["http_client"] is given
    assert provider.AsyncAnthropic(api_key="", http_client=given) is not made


async def test_a_client_is_made_anew_once_a_variable_it_reads_is_set(
    provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = provider.AsyncAnthropic(api_key="a")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")

    assert provider.AsyncAnthropic(api_key="a") is not before
    await _kept.close_clients()


async def test_a_client_that_was_crowded_out_serves_its_turn_and_is_closed_at_the_end(provider: Any) -> None:
    first, *_, second = [provider.AsyncAnthropic(api_key=str(key)) for key in range(_kept.KEPT_CLIENTS + 1)]
    assert not first.is_closed

    await _kept.close_clients()

    assert first.is_closed
    assert second.is_closed


async def test_a_client_used_without_being_entered_is_the_kept_one_and_stays_open() -> None:
    kept = FakeClient(api_key="a")
    lent = _kept.Lent(kept)

    assert lent.settings == {"api_key": "a"}
    await lent.close()

    assert not kept.is_closed


@pytest.mark.parametrize("provider", [Provider.GENERIC, Provider.RESPONSES, Provider.AZURE])
async def test_two_turns_have_one_client_with_open_sockets(provider: Provider) -> None:
    one, other = make_client(provider), make_client(provider)

    assert http_of(one) is http_of(other)
    assert http_of(one).headers["Connection"] == "keep-alive"
    await registry().close()


async def test_two_turns_with_google_have_one_client_with_open_sockets() -> None:
    module: Any = sys.modules[load(Provider.GOOGLE).__module__]

    one, other = (module.genai.Client(api_key="not-a-key", http_options=None).aio for _ in range(2))

    assert one.http is other.http
    assert one.http.headers["Connection"] == "keep-alive"
    await registry().close()
