"""What an LLM turn cost, in kinds that add up, from what each family of providers reports."""

import pytest
from anthropic.types.beta import BetaUsage
from fast_agent.llm.provider_types import Provider
from fast_agent.llm.usage_tracking import (
    CompletionTokenUsage,
    PromptTokenUsage,
    TurnUsage,
    UsageSchema,
    usage_from_anthropic,
    usage_from_openai_chat,
)
from openai.types.completion_usage import CompletionUsage

from pallas_gateway.calls.call import Usage
from pallas_gateway.runtime.call.messages import MOST_TOKENS, turn_of


def test_what_anthropic_reports_is_disjoint_already_and_no_cache_hit() -> None:
    reported = BetaUsage(input_tokens=10, output_tokens=20, cache_read_input_tokens=300, cache_creation_input_tokens=40)
    turn = turn_of(usage_from_anthropic(reported, provider=Provider.ANTHROPIC, model="claude"))
    assert turn.usage == Usage(input=10, output=20, cache_read=300, cache_write=40)
    assert "cache_hit" not in turn.by_kind()


def test_what_openai_reports_includes_the_cache_in_the_prompt_and_is_a_cache_hit() -> None:
    reported = CompletionUsage.model_validate(
        {
            "prompt_tokens": 350,
            "completion_tokens": 20,
            "total_tokens": 370,
            "prompt_tokens_details": {"cached_tokens": 300, "cache_write_tokens": 40},
            "completion_tokens_details": {"reasoning_tokens": 7},
        }
    )
    turn = turn_of(usage_from_openai_chat(reported, provider=Provider.OPENAI, model="gpt"))
    assert turn.usage == Usage(input=10, output=20, cache_read=300, cache_write=40, reasoning=7)
    assert turn.by_kind()["cache_hit"] == 300


def test_a_number_that_no_turn_can_use_is_cut() -> None:
    reported = CompletionUsage(prompt_tokens=10**400, completion_tokens=10**400, total_tokens=2 * 10**400)
    turn = turn_of(usage_from_openai_chat(reported, provider=Provider.OPENAI, model="gpt"))
    assert turn.usage == Usage(input=MOST_TOKENS, output=MOST_TOKENS)


@pytest.mark.parametrize("schema", UsageSchema)
def test_the_kinds_of_the_prompt_add_up_to_it(schema: UsageSchema) -> None:
    turn = turn_of(
        TurnUsage(
            provider=Provider.GENERIC,
            usage_schema=schema,
            model="any",
            prompt=PromptTokenUsage(total=350, uncached=10, cache_read=300, cache_write=40),
            completion=CompletionTokenUsage(total=20, reasoning=7),
        )
    )
    kinds = turn.by_kind()
    assert kinds["input"] + kinds["cache_read"] + kinds["cache_write"] == 350
    assert kinds["reasoning"] <= kinds["output"] == 20


def test_a_provider_that_reports_nothing_costs_nothing_known() -> None:
    silent = TurnUsage(
        provider=Provider.GENERIC,
        usage_schema=UsageSchema.OPENAI_CHAT,
        model="any",
        prompt=PromptTokenUsage(),
        completion=CompletionTokenUsage(),
    )
    assert turn_of(silent).usage == Usage()
