"""Which model the example's agents run on: a provider's when its key is set, else the scripted one of this package."""

from collections.abc import Mapping

from pallas_gateway.example import demo_model

# By the variable that fast-agent reads the provider's key from; the first that is set wins.
PROVIDER_MODELS = {
    "ANTHROPIC_API_KEY": "anthropic.claude-sonnet-5-5",
    "OPENAI_API_KEY": "responses.gpt-6.1-sol",
}
COMPATIBLE_MODEL = "openai.gpt-6.1-sol"
"""By chat completions, in place of OpenAI's Responses API: what servers that are compatible with OpenAI's all have."""


def example_model(environ: Mapping[str, str]) -> str:
    """The model as fast-agent names it. `PALLAS_EXAMPLE_MODEL` decides, else the keys that are set and not empty."""
    demo_model.register()
    if chosen := environ.get("PALLAS_EXAMPLE_MODEL", "").strip():
        return chosen
    key = next((key for key in PROVIDER_MODELS if environ.get(key, "").strip()), None)
    if key == "OPENAI_API_KEY" and environ.get("OPENAI_BASE_URL", "").strip():
        return COMPATIBLE_MODEL
    return demo_model.SPEC if key is None else PROVIDER_MODELS[key]
