"""Every provider of fast-agent's that can be pointed at a server on loopback, and what each can do.

`over_providers(capability)` runs a test for all of `PROVIDERS`. A cell in `GAPS` has to fail, or the suite does:
`docs/operate/providers.md` is written from these tables (`make docs`), so it says what the tests found.
"""

from collections.abc import Collection, Iterable, Mapping

import pytest

from tests.support.provider_gateways import KEY, Provider, codex_token
from tests.support.providers.anthropic import Anthropic, AnthropicVertex
from tests.support.providers.bedrock import Bedrock
from tests.support.providers.gemini import Gemini
from tests.support.providers.google_login import PROJECT
from tests.support.providers.responses import Responses

AT_V1 = {"api_key": KEY, "base_url": "{url}/v1"}

GENERIC = Provider("generic", "generic.test-model", None, AT_V1, seeing="generic.seeing-model")
OPENAI = Provider("openai", "openai.gpt-4.1", None, AT_V1)
AZURE = Provider(
    "azure",
    "azure.deployment",
    None,
    {"api_key": KEY, "base_url": "{url}", "azure_deployment": "deployment"},
    seeing="azure.seeing-deployment",
)
OPENROUTER = Provider("openrouter", "openrouter.vendor/unheard-of", None, AT_V1, seeing="openrouter.vendor/seeing")
GROQ = Provider("groq", "groq.qwen/qwen3-32b", None, AT_V1, seeing="groq.qwen/qwen3.6-27b")
HF = Provider("hf", "hf.moonshotai/Kimi-K2-Instruct-0905", None, AT_V1, seeing="hf.moonshotai/Kimi-K2.5")
ALIYUN = Provider("aliyun", "aliyun.qwen-turbo", None, AT_V1)
ZAI = Provider("zai", "zai.glm-5.2", None, AT_V1, seeing="zai.glm-5.3-flash")
MOONSHOT = Provider("moonshot", "moonshot.kimi-k3", None, AT_V1)
GOOGLEOAI = Provider("googleoai", "googleoai.gemini-2.5-pro", None, AT_V1, {"GOOGLEOAI_API_KEY": KEY}, section="google")
TENSORZERO = Provider(
    "tensorzero", "tensorzero.function", None, {"api_key": KEY, "base_url": "{url}"}, seeing="tensorzero.seeing"
)
RESPONSES = Provider("responses", "responses.gpt-4.1", Responses(), AT_V1)
WEBSOCKET = Provider(
    "responses by WebSocket", "responses.gpt-4.1?transport=websocket", Responses(), AT_V1, section="responses"
)
DEEPSEEK = Provider("deepseek", "deepseek.deepseek-flash", Responses(), AT_V1)
XAI = Provider("xai", "xai.grok-4.7", Responses(), AT_V1)
CODEX_TOKEN = codex_token(KEY)
CODEX = Provider(
    "codexresponses",
    "codexresponses.gpt-5.5",
    Responses(),
    {"api_key": CODEX_TOKEN, "base_url": "{url}/v1"},
    key=CODEX_TOKEN,
)
METAAI = Provider("metaai", "metaai.muse-spark-1.3", Responses(), AT_V1)
OPENRESPONSES = Provider("openresponses", "openresponses.test-model", Responses(), AT_V1, seeing="openresponses.seeing")
ANTHROPIC = Provider("anthropic", "anthropic.claude-haiku-4-5", Anthropic(), {"api_key": KEY, "base_url": "{url}"})
GEMINI = Provider("google", "google.gemini-2.5-flash", Gemini(), {"api_key": KEY, "base_url": "{url}"})
GEMINI_VERTEX = Provider(
    "google by Vertex AI",
    "google.gemini-2.5-flash",
    Gemini(),
    {"base_url": "{url}"},
    section="google",
    more={"vertex_ai": {"enabled": True, "project_id": PROJECT, "location": "europe-west4"}},
    logs_in=True,
)
ANTHROPIC_VERTEX = Provider(
    "anthropic-vertex",
    "anthropic-vertex.claude-haiku-4-5",
    AnthropicVertex(),
    {},
    {"ANTHROPIC_VERTEX_BASE_URL": "{url}/v1"},
    section="anthropic",
    logs_in=True,
)
BEDROCK = Provider(
    "bedrock",
    "bedrock.amazon.nova-lite-v1:0",
    Bedrock(),
    {"region": "eu-west-1"},
    {
        "AWS_ACCESS_KEY_ID": "AKIAOFTHETESTS000000",
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "{url}",
        "AWS_CONFIG_FILE": "none",
        "AWS_SHARED_CREDENTIALS_FILE": "none",
        "AWS_EC2_METADATA_DISABLED": "true",
    },
    seeing="bedrock.amazon.nova-pro-v1:0",
    in_threads=True,
)

CHAT = (GENERIC, OPENAI, AZURE, OPENROUTER, GROQ, HF, ALIYUN, ZAI, MOONSHOT, GOOGLEOAI, TENSORZERO)
RESPONDING = (RESPONSES, WEBSOCKET, CODEX, DEEPSEEK, XAI, METAAI, OPENRESPONSES)
PROVIDERS = (*CHAT, *RESPONDING, ANTHROPIC, ANTHROPIC_VERTEX, GEMINI, GEMINI_VERTEX, BEDROCK)

CAPABILITIES: Mapping[str, str] = {
    "answer": "the model's answer is the result of the call",
    "history": "earlier messages are sent, in order",
    "images": "images of the call and its history are sent",
    "documents": "the same for PDFs",
    "usage": "tokens are counted by kind",
    "schema": "with a JSON schema for the answer, the agent still uses its tools",
    "parameters": "each parameter of a call is sent or listed in `ignored`",
    "connections": "calls share a connection",
    "parallel tools": "one answer may have several tool calls",
    "deltas": "live text (`assistant_delta`) is sent",
    "cancellation": "a client that disconnects or cancels ends the provider's request",
    "caller's token": "only Hugging Face gets it, as the key",
    "later turns": "a thread's later turns have the tool calls and reasoning of the earlier ones",
    "log": "no key and no token is in the log, and above DEBUG no word of a conversation",
    "early end": "an answer without its end is a failure",
    "cut": "a connection cut within an answer is a failure",
    "error event": "an error within an answer is a failure with its message",
    "retries": "429 and 5xx are repeated",
    "attempts": "at most three requests are sent",
    "wrong key": "a refused key is a failure without repeats",
    "refused": "a refused connection is tried again, then a failure",
    "garbage": "a web page instead of an answer is a failure",
    "silence": "a model that sends nothing for `streaming_timeout` fails with `llm_timeout`",
}
"""Key: the name in tests, in `GAPS` and as the document's column; value: what the tests found where it is checked."""

_KNOWN_WITHOUT = "fast-agent knows the model of the tests as one without them"
GAPS: Mapping[tuple[str, str], str] = {
    **{(name, "documents"): _KNOWN_WITHOUT for name in ("groq", "hf", "aliyun", "moonshot", "deepseek", "xai")},
    ("zai", "documents"): "fast-agent sends only the text and images of a message",
    ("bedrock", "documents"): "fast-agent sends only the text of a message",
    ("bedrock", "images"): "fast-agent sends only the text of a message",
    ("responses by WebSocket", "connections"): "a WebSocket belongs to one call",
}
"""(provider, capability): why it does not work."""

UNTRIED: Mapping[str, str] = {
    "azure with `use_default_azure_credential`": "tested with a substitute for the package `azure-identity`",
    "copilot": "answers and retries are tested; it requires `COPILOT_GITHUB_TOKEN` or the file of a login",
    "xai and codexresponses without a key": "tested with the file of a login and a local login server",
}
"""Providers of fast-agent that the tests cannot try: what they require, and what is known of them."""


def over_providers(capability: str, providers: Iterable[Provider] = PROVIDERS) -> pytest.MarkDecorator:
    """Run a test for each provider, in gateways of its own; those in `GAPS` must fail."""
    return pytest.mark.parametrize("provider", _cells((capability,), providers))


def in_shared_gateways(*capabilities: str, providers: Iterable[Provider] = PROVIDERS) -> pytest.MarkDecorator:
    """Run a test for each provider, in the gateway that all tests of the module share; those in `GAPS` must fail.

    Its module needs `pytest.mark.asyncio(loop_scope="module")`. Most of a call's costs are those of its gateway, and
    pytest groups tests by the index of the parameter, so all of a module have the same providers.
    """
    return pytest.mark.parametrize("shared", _cells(capabilities, providers), indirect=True, scope="module")


def _cells(capabilities: Collection[str], providers: Iterable[Provider]) -> list[object]:
    assert CAPABILITIES.keys() >= set(capabilities)
    return [_cell(provider, capabilities) for provider in providers]


def _cell(provider: Provider, capabilities: Iterable[str]) -> object:
    reason = ", ".join(filter(None, (GAPS.get((provider.name, one)) for one in capabilities)))
    marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
    return pytest.param(provider, marks=marks, id=_id(provider))


def _id(provider: Provider) -> str:
    return provider.name.replace(" ", "-")
