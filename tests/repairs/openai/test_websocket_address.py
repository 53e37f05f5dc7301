"""WebSockets of the Responses API go to another address."""

from types import SimpleNamespace
from typing import Any

import pytest
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider

from pallas_gateway.runtime import preparation


@pytest.mark.parametrize(
    ("configured", "variable", "address"),
    [
        (None, None, "https://api.openai.com/v1"),
        (None, "http://localhost:1/v1", "http://localhost:1/v1"),
        ("http://localhost:2/v1", "http://localhost:1/v1", "http://localhost:2/v1"),
    ],
)
def test_websockets_use_the_address_of_requests(
    monkeypatch: pytest.MonkeyPatch, configured: str | None, variable: str | None, address: str
) -> None:
    preparation.prepare()
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    if variable is not None:
        monkeypatch.setenv("OPENAI_BASE_URL", variable)
    responses: Any = ModelFactory._load_provider_class(Provider.RESPONSES)
    assert responses._base_responses_url(SimpleNamespace(_base_url=lambda: configured)) == address
