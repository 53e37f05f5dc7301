"""Writes docs/operate/providers.md from the tables of `provider_matrix`: `make docs`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fast_agent.llm.provider_key_manager import ProviderKeyManager

from pallas_gateway.runtime.settings.provider_addresses import address_variable
from tests.support.provider_gateways import Provider
from tests.support.provider_matrix import CAPABILITIES, GAPS, PROVIDERS, UNTRIED

_INTRODUCTION = """\
# Providers of models

For operators: how to use the models of each of fast-agent's providers, and what is tested with each.
[providers-at-work.md](providers-at-work.md) describes checks of keys, retries and reasons of failures,
[parameters.md](../use/parameters.md) the parameters of a call that each provider accepts.

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

- `openai.gpt-5` uses OpenAI's chat completions API, `responses.gpt-5` the Responses API. Without a provider, fast-agent
  chooses one for the models that it knows: `gpt-5` is `responses.gpt-5`.
- fast-agent does not know Azure's deployments, the models of your own server, and many others. Such a model receives
  text only, and has default limits, unless `model_capabilities` declares them. `check` prints a warning for each.
- Declare `max_output_tokens` for a model of `generic`: without it, an answer ends only where the server ends it. vLLM
  refuses a request whose prompt and `max_tokens` exceed the context together.
- llama.cpp's server answers under any model name. `n_ctx` in its `GET /v1/models` is the `context_window` to declare.
  It takes images only if it was started with `--mmproj`; declare `vision` then.
- Bedrock requires `pip install boto3`, and also uses boto3's other sources of credentials.
- A `base_url` does not include `/chat/completions` or `/responses`; it usually ends with `/v1`. Those of `anthropic`,
  `google`, `azure` and `tensorzero` have no path.

`pallas-gateway check` reports missing keys, packages and logins; with `--online` it also tests the key and the model
at [most providers](providers-at-work.md#llm-providers).

The agents of `make serve` use a test model, those in Python a provider's if `ANTHROPIC_API_KEY` or `OPENAI_API_KEY` is
set (`OPENAI_BASE_URL`: chat completions of that server). `PALLAS_EXAMPLE_MODEL` is the model of all but `echo`.

### Logins instead of keys

`codexresponses` (models such as `codexresponses.gpt-5.5`, with a ChatGPT account), `xai` and `copilot` accept the token
of a login instead of a key. Log in once, and start the gateway with the same variable, for example in `.env`:

```console
$ export FAST_AGENT_AUTH_FILE=$HOME/pallas-logins.json
$ fast-agent auth provider login codex      # or xai, or copilot
$ pallas-gateway serve
```

The gateway renews the token in this file, which it must be able to write.
"""
_EVIDENCE = """\
Each feature is tested with each provider but [these](#features-that-do-not-work), by a local server that implements the
provider's wire format, and llama.cpp's own server with `generic`.
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
    "googleoai": "only `GOOGLEOAI_API_KEY`",
    "bedrock": "AWS's credentials: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, or `bedrock.profile`",
}
_SPECIAL_ADDRESSES = {
    "google by Vertex AI": "`google.vertex_ai`",
    "anthropic-vertex": "`anthropic.vertex_ai`, `ANTHROPIC_VERTEX_BASE_URL`",
    "bedrock": "`bedrock.region`, `AWS_ENDPOINT_URL_BEDROCK_RUNTIME`",
}
_REMARKS = """\
- `api_key` and `base_url` in the provider's section of `fastagent.secrets.yaml` or `fastagent.config.yaml` override the
  variables of the table. The section of `googleoai` is `google`. Without a section `responses`, `openai` applies to it.
- `generic` requires a key only if its server does. The default addresses of `generic`, `openresponses` and `tensorzero`
  are on this machine, at port 11434, 8080 or 3000. `azure` requires an address or `azure.resource_name`.
- A call with images or PDFs is refused (`images_unsupported`) if its model does not support them.
- Gemini reports no tokens written to the cache, Bedrock no reasoning tokens.
- With `transport: websocket` or `?transport=websocket`, each call to the Responses API opens a WebSocket.
"""


def page() -> str:
    """The whole document."""
    return "\n".join([_INTRODUCTION, *_settings(), *_capabilities(), *_gaps(), *_untried()])


def _settings() -> Iterator[str]:
    yield "## Keys and addresses\n"
    heads = ("provider", "model of the tests", "wire format", "key", "address")
    yield from _table(heads, (_needs(one) for one in PROVIDERS))
    yield ""
    yield _REMARKS


def _capabilities() -> Iterator[str]:
    yield "## Tested features\n"
    yield _EVIDENCE
    yield from (f"- **{name}**: {meaning}." for name, meaning in CAPABILITIES.items())
    yield ""


def _gaps() -> Iterator[str]:
    yield "## Features that do not work\n"
    without: dict[tuple[str, str], list[str]] = {}
    for (provider, capability), reason in GAPS.items():
        without.setdefault((capability, reason), []).append(f"`{provider}`")
    yield from (f"- **{name}** of {', '.join(those)}: {reason}." for (name, reason), those in without.items())
    yield ""


def _untried() -> Iterator[str]:
    yield "## Partly tested\n"
    yield "These require accounts that the tests do not have.\n"
    yield from (f"- {name}: {reason}." for name, reason in UNTRIED.items())
    yield ""


def _needs(provider: Provider) -> tuple[str, ...]:
    wire_format = _FORMATS[type(provider.dialect).__name__]
    return f"`{provider.name}`", f"`{provider.model}`", wire_format, _key(provider), _address(provider)


def _key(provider: Provider) -> str:
    variable = ProviderKeyManager.get_env_key_name(_section(provider))
    return _SPECIAL_KEYS.get(provider.name, f"`{variable}`")


def _address(provider: Provider) -> str:
    variable = address_variable(provider.name.partition(" ")[0])
    return _SPECIAL_ADDRESSES.get(provider.name, f"`{variable}`" if variable else "")


def _section(provider: Provider) -> str:
    return provider.section or provider.name


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for cells in (heads, ("---",) * len(heads), *rows):
        yield f"| {' | '.join(cells)} |"
