"""The model of the example's agents: a provider's if its key is set, else the scripted one of this package."""

from collections.abc import Mapping

from pallas_gateway.example import demo_model

# By the variable of the provider's key; the first one that is set is used.
PROVIDER_MODELS = {
    "ANTHROPIC_API_KEY": "anthropic.claude-sonnet-5-5",
    "OPENAI_API_KEY": "responses.gpt-6.1-sol",
}
COMPATIBLE_MODEL = "openai.gpt-6.1-sol"
"""A model of chat completions, which all OpenAI-compatible servers have, unlike the Responses API."""


def example_model(environ: Mapping[str, str]) -> str:
    """fast-agent's name of the model: `PALLAS_EXAMPLE_MODEL`, else by the keys that are set and not empty."""
    demo_model.register()
    if chosen := environ.get("PALLAS_EXAMPLE_MODEL", "").strip():
        return chosen
    key = next((key for key in PROVIDER_MODELS if environ.get(key, "").strip()), None)
    if key == "OPENAI_API_KEY" and environ.get("OPENAI_BASE_URL", "").strip():
        return COMPATIBLE_MODEL
    return demo_model.SPEC if key is None else PROVIDER_MODELS[key]
