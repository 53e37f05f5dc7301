"""Which model the example's agents run on: a provider's when its key is set, else the scripted one of this package."""

from collections.abc import Mapping

from pallas_gateway.example import demo_model

# By the variable that fast-agent reads the provider's key from; the first that is set wins.
PROVIDER_MODELS = {
    "ANTHROPIC_API_KEY": "anthropic.claude-sonnet-5-5",
    "OPENAI_API_KEY": "responses.gpt-6.1-sol",
}


def example_model(environ: Mapping[str, str]) -> str:
    """The model as fast-agent names it. `PALLAS_EXAMPLE_MODEL` decides, else the keys that are set and not empty."""
    demo_model.register()
    if chosen := environ.get("PALLAS_EXAMPLE_MODEL", "").strip():
        return chosen
    with_key = (model for key, model in PROVIDER_MODELS.items() if environ.get(key, "").strip())
    return next(with_key, demo_model.SPEC)
