"""Talk to an agent with openai-agents, whole and streamed: `openai_agents.py URL MODEL`, JSON on stdout."""

# mypy: ignore-errors
# It does not see this folder's environment.

import asyncio
import json
import sys

from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool
from openai import AsyncOpenAI


@function_tool
def unused() -> str:
    """Return nothing: the agent has tools of its own."""
    return ""


async def talk(url: str, model: str) -> dict[str, object]:
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0))
    config = RunConfig(model_provider=provider, tracing_disabled=True)
    agent = Agent(name="cat", instructions="Be a cat.", model=model, tools=[unused])
    first = await Runner.run(agent, "hello", run_config=config)
    turns = [*first.to_input_list(), {"role": "user", "content": "add"}]
    streamed = Runner.run_streamed(agent, turns, run_config=config)
    kinds = [event.type async for event in streamed.stream_events()]
    return {
        "whole": first.final_output,
        "streamed": streamed.final_output if kinds else "",
        "id": streamed.last_response_id,
        "tokens": first.context_wrapper.usage.total_tokens,
    }


if __name__ == "__main__":
    json.dump(asyncio.run(talk(*sys.argv[1:])), sys.stdout)
