"""Writes docs/providers.md from the tables of `provider_matrix`: `python -m tests.e2e.provider_page`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fast_agent.llm.provider_key_manager import ProviderKeyManager

from pallas_gateway.runtime.settings.provider_addresses import address_variable
from tests.e2e.provider_matrix import CAPABILITIES, GAPS, PROVIDERS, UNTRIED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.e2e.providers import Provider

_INTRODUCTION = """\
# Providers of models

What works with which of fast-agent's providers. Written by `make docs` from the tables of
`tests/e2e/provider_matrix.py`. Each check mark is a test that runs a gateway against a server on this machine that
speaks the provider's wire format; a **no** is a test that has to fail. No test asks a provider's own server.

[upstream.md](upstream.md) has what the gateway repairs in fast-agent for it, [parameters.md](parameters.md) which
parameters of a call each provider takes, [operating.md](operating.md#llm-providers) how keys and models are checked
before agents start.
"""
_FORMATS = {
    "NoneType": "chat completions",
    "Responses": "Responses API",
    "Anthropic": "Messages API",
    "AnthropicVertex": "Messages API of Vertex AI",
    "Gemini": "`generateContent`",
    "Bedrock": "Converse",
}
_GOOGLE_LOGIN = "a login of Google Cloud, such as `GOOGLE_APPLICATION_CREDENTIALS`"
_SPECIAL_KEYS = {
    "google by Vertex AI": _GOOGLE_LOGIN,
    "anthropic-vertex": _GOOGLE_LOGIN,
    "googleoai": "`GOOGLEOAI_API_KEY`",
    "bedrock": "AWS's credentials: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, or `bedrock.profile`",
}
_SPECIAL_ADDRESSES = {
    "google by Vertex AI": "`google.vertex_ai`, `google.base_url`",
    "anthropic-vertex": "`anthropic.vertex_ai`, `ANTHROPIC_VERTEX_BASE_URL`",
    "bedrock": "`bedrock.region`, `AWS_ENDPOINT_URL_BEDROCK_RUNTIME`",
}
_PACKAGES = {"bedrock": "boto3"}
_REMARKS = """\
- A key in fastagent.secrets.yaml or fastagent.config.yaml wins over its variable. Without an address, requests go to
  the provider's own; `generic`, `openresponses` and `tensorzero` then mean a server on this machine, and `azure`
  requires an address or `azure.resource_name`.
- A model that takes no images refuses a call that has some (`images_unsupported`); a model that fast-agent does not
  know takes them only where `model_capabilities` declares `vision`.
- Tokens: Gemini does not report what it wrote to the cache, Bedrock not what was reasoning. The tokens of a server that
  reports no usage are 0.
- The Responses API is used by server-sent events. With `transport: websocket` or `?transport=websocket` a WebSocket is
  opened for each call; answers, tool calls, retries, timeouts and cancellation are tested over it too.
- Servers of chat completions that depart from OpenAI's form are tested as well: reasoning in `reasoning_content` or
  `reasoning`; usage in the last chunk, in each, in Groq's place, or nowhere; tool calls in one piece or in several, all
  in one chunk, without an index, all with the index 0, with empty ids; comments; the reason `stop` after tool calls.
"""


def page() -> str:
    """The whole document."""
    return "\n".join([_INTRODUCTION, *_settings(), *_capabilities(), *_gaps(), *_untried()])


def _settings() -> Iterator[str]:
    yield "## What they need\n"
    heads = ("provider", "model of the tests", "wire format", "key", "address", "package")
    yield from _table(heads, (_needs(one) for one in PROVIDERS))
    yield ""
    yield _REMARKS


def _capabilities() -> Iterator[str]:
    yield "## What works\n"
    yield from (f"- **{name}**: {meaning}." for name, meaning in CAPABILITIES.items())
    yield ""
    rows = ((f"`{one.name}`", *(_mark(one, name) for name in CAPABILITIES)) for one in PROVIDERS)
    yield from _table(("provider", *CAPABILITIES), rows)
    yield ""


def _gaps() -> Iterator[str]:
    yield "## What does not work\n"
    yield from (f"- `{provider}`, {capability}: {reason}." for (provider, capability), reason in GAPS.items())
    yield ""


def _untried() -> Iterator[str]:
    yield "## What is not tried\n"
    yield "These require logins that the tests do not have.\n"
    yield from (f"- {name}: {reason}." for name, reason in UNTRIED.items())
    yield ""


def _needs(provider: Provider) -> tuple[str, ...]:
    wire_format = _FORMATS[type(provider.dialect).__name__]
    package = f"`{name}`" if (name := _PACKAGES.get(provider.name)) else ""
    return f"`{provider.name}`", f"`{provider.model}`", wire_format, _key(provider), _address(provider), package


def _mark(provider: Provider, capability: str) -> str:
    return "**no**" if (provider.name, capability) in GAPS else "✓"


def _key(provider: Provider) -> str:
    variable = ProviderKeyManager.get_env_key_name(_section(provider))
    return _SPECIAL_KEYS.get(provider.name, f"`{_section(provider)}.api_key`, `{variable}`")


def _address(provider: Provider) -> str:
    variable = address_variable(provider.name.partition(" ")[0])
    names = [f"{_section(provider)}.base_url", *([variable] if variable else [])]
    return _SPECIAL_ADDRESSES.get(provider.name, ", ".join(f"`{name}`" for name in names))


def _section(provider: Provider) -> str:
    return provider.section or provider.name


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for cells in (heads, ("---",) * len(heads), *rows):
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
