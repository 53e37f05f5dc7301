"""AWS is asked about every unknown model."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider.bedrock import bedrock_utils
from fast_agent.llm.provider_types import Provider

from pallas_gateway.runtime import preparation
from pallas_gateway.runtime.settings.model_names import provider_of
from tests.support.calling import ask
from tests.support.listener import black_hole
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import OPENROUTER
from tests.support.scripted_llm import say


class Aws:
    """Stands for boto3 without a region; counts the sessions that are made to look for one."""

    def __init__(self) -> None:
        self.sessions = 0

    def Session(self) -> SimpleNamespace:  # noqa: N802  boto3's name
        self.sessions += 1
        return SimpleNamespace(region_name=None)


async def test_a_vendors_model_is_not_looked_up_at_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aws = Aws()
    monkeypatch.setattr(bedrock_utils, "_boto3", aws)
    async with serving(tmp_path, OPENROUTER, lambda _: say("Done.")) as served:
        assert (await ask(served.url)).text == "Done."

    assert ModelFactory._bedrock_pattern_matches("amazon.nova-lite-v1:0")
    assert aws.sessions == 0


async def test_aws_is_not_asked_about_a_model_of_another_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHETESTS000000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-key")
    monkeypatch.setenv("BEDROCK_REGION", "eu-west-1")
    with black_hole() as silent:  # it would block the event loop until boto3 gives up
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK", silent)
        async with serving(tmp_path, OPENROUTER, [say("Hello.")]) as served:
            answer = await ask(served.url)

    assert answer.text == "Hello."


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("amazon.nova-lite-v1:0", Provider.BEDROCK),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", Provider.BEDROCK),
        ("mistral.mistral-7b-instruct-v0:2", Provider.BEDROCK),
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", Provider.ANTHROPIC),
        ("openai.gpt-oss-120b-1:0", Provider.OPENAI),
        ("amazon.nova-lite", None),
        ("vendor/unheard-of:1", None),
        ("nobodys-model", None),
    ],
)
def test_a_model_of_bedrock_without_its_provider_is_known_by_its_form(name: str, provider: Provider | None) -> None:
    preparation.prepare()
    assert provider_of(name) is provider
