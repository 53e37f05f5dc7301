"""Writes docs/operate/providers.md from the tables of `provider_matrix`: `make docs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fast_agent.llm.provider_key_manager import ProviderKeyManager

from pallas_gateway.runtime.settings.provider_addresses import address_variable
from tests.support.provider_matrix import CAPABILITIES, GAPS, PROVIDERS, UNTRIED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.support.provider_gateways import Provider

_INTRODUCTION = """\
# Providers of models

How to use the models of each of fast-agent's providers, and the tested features of each. See also the
[parameters](../use/parameters.md) of a call that each provider accepts, the
[checks](providers-at-work.md#llm-providers) of keys and models before agents start, and the
[repairs](../upstream.md) of fast-agent.

## Set up a provider

Name a model as `PROVIDER.MODEL`: in `default_model` of `fastagent.config.yaml` for all agents, or in `model` of one
agent (in Python, `model=` of its decorator). Each agent of this example uses another provider:

```yaml
# agents.yaml
name: models
agents:
  responses: {instruction: Answer briefly., model: responses.gpt-5}
  openai: {instruction: Answer briefly., model: openai.gpt-5}
  claude: {instruction: Answer briefly., model: anthropic.claude-sonnet-4-5}
  gemini: {instruction: Answer briefly., model: google.gemini-2.5-flash}
  nova: {instruction: Answer briefly., model: "bedrock.amazon.nova-lite-v1:0"}
  router: {instruction: Answer briefly., model: openrouter.anthropic/claude-sonnet-4.5}
  grok: {instruction: Answer briefly., model: xai.grok-4.7}
  deployed:
    instruction: Answer briefly.
    model: azure.my-deployment              # the name of the deployment
    model_capabilities: {vision: true, context_window: 400000, max_output_tokens: 128000}
  local:
    instruction: Answer briefly.
    model: generic.my-model                 # as the server names it
    model_capabilities: {vision: false, context_window: 32768, max_output_tokens: 8192}
```

```yaml
# fastagent.config.yaml
default_model: responses.gpt-5
azure:
  base_url: https://my-resource.openai.azure.com
bedrock:
  region: eu-west-1
generic:
  base_url: http://localhost:8000/v1        # vLLM, llama.cpp, Ollama and others
```

```sh
# .env
OPENAI_API_KEY=…
ANTHROPIC_API_KEY=…
GOOGLE_API_KEY=…
AWS_ACCESS_KEY_ID=…
AWS_SECRET_ACCESS_KEY=…
OPENROUTER_API_KEY=…
XAI_API_KEY=…
AZURE_API_KEY=…
```

- `openai.gpt-5` uses OpenAI's chat completions API, `responses.gpt-5` the Responses API. Many models can be named
  without a provider, because fast-agent knows it: `gpt-5` is `responses.gpt-5`.
- `generic` requires no key. Set `GENERIC_API_KEY` if your server requires one.
- Declare `max_output_tokens` for a model of `generic`: without it, requests have no `max_tokens`, and an answer ends
  only where the server ends it. vLLM refuses a request whose prompt and `max_tokens` exceed the context together.
- llama.cpp's server answers under any model name. `n_ctx` in its list of models (`GET /v1/models`) is the
  `context_window` to declare. It takes images only if it was started with `--mmproj`; declare `vision` then.
- Bedrock requires `pip install boto3` in the gateway's environment. boto3 also reads credentials from
  `bedrock.profile`, and from its other default sources.
- fast-agent does not know Azure's deployments, the models of your own server, and many others. Such a model receives
  text only, and has default limits, unless `model_capabilities` declares them. `check` prints a warning for each.
- A `base_url` does not include `/chat/completions` or `/responses`; it usually ends with `/v1`. Those of `anthropic`,
  `google`, `azure` and `tensorzero` have no path.

`pallas-gateway check` reports missing keys, packages and logins, and models that fast-agent does not know.
`pallas-gateway check --online` also tests the key and the model at
[most providers](providers-at-work.md#llm-providers), without a completion. The health of every agent includes the
provider of `default_model`, even if the agent has another model.
If a call fails, its message has [the reason](providers-at-work.md#why-a-model-could-not-answer).

### Logins instead of keys

`codexresponses` (models such as `codexresponses.gpt-5.5`, with a ChatGPT account), `xai` and `copilot` accept the token
of a login instead of a key. Log in once, and start the gateway with the same variable, for example in `.env`:

```console
$ export FAST_AGENT_AUTH_FILE=$HOME/pallas-logins.json
$ fast-agent auth provider login codex      # or xai, or copilot
$ pallas-gateway serve
```

The gateway renews the token in this file, and requires permission to write it.
"""
_EVIDENCE = """\
`make docs` writes this page from the tables in `tests/support/provider_matrix.py`. A check mark is a test of a gateway
with a local server that implements the provider's wire format. A **no** is a test that is expected to fail. No test
uses a provider's own server, except llama.cpp's with `generic` (`tests/e2e/test_own_model_server.py`).
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
- A key or an address in `fastagent.secrets.yaml` or `fastagent.config.yaml` overrides its variable. Without a section
  `responses`, the section `openai` applies to `responses`.
- Without an address, requests go to the provider's default address. For `generic`, `openresponses` and `tensorzero`
  this is a server on the same machine, at port 11434, 8080 or 3000. `azure` requires an address or
  `azure.resource_name`.
- A call with images is refused (`images_unsupported`) if its model does not support images. A model that fast-agent
  does not know supports them only if `model_capabilities` declares `vision`. The same applies to PDFs and `documents`.
- Tokens: Gemini reports no tokens written to the cache, Bedrock reports no reasoning tokens. A server that reports no
  usage counts as 0 tokens.
- The Responses API uses server-sent events. With `transport: websocket` or `?transport=websocket`, each call opens a
  WebSocket; answers, tool calls, retries, timeouts and cancellation are tested with it as well.
- Variants of the chat completions format are tested as well: reasoning in `reasoning_content` or `reasoning`; usage in
  the last chunk, in each chunk, in Groq's field, or absent; tool calls in one or several pieces, all in one chunk,
  without an index, all with index 0, with empty ids; comments; the finish reason `stop` after tool calls.
"""


def page() -> str:
    """The whole document."""
    return "\n".join([_INTRODUCTION, *_settings(), *_capabilities(), *_gaps(), *_untried()])


def _settings() -> Iterator[str]:
    yield "## Keys and addresses\n"
    heads = ("provider", "model of the tests", "wire format", "key", "address", "package")
    yield from _table(heads, (_needs(one) for one in PROVIDERS))
    yield ""
    yield _REMARKS


def _capabilities() -> Iterator[str]:
    yield "## Tested features\n"
    yield _EVIDENCE
    yield from (f"- **{name}**: {meaning}." for name, meaning in CAPABILITIES.items())
    yield ""
    rows = ((f"`{one.name}`", *(_mark(one, name) for name in CAPABILITIES)) for one in PROVIDERS)
    yield from _table(("provider", *CAPABILITIES), rows)
    yield ""


def _gaps() -> Iterator[str]:
    yield "## Features that do not work\n"
    yield from (f"- `{provider}`, {capability}: {reason}." for (provider, capability), reason in GAPS.items())
    yield ""


def _untried() -> Iterator[str]:
    yield "## Partly tested\n"
    yield "These require accounts that the tests do not have.\n"
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
