"""Talk to an agent with agent-framework, whole and streamed: `URL MODEL`, JSON on stdout."""

# mypy: ignore-errors
# It does not see this folder's environment.

import asyncio
import json
import sys

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient


async def talk(url: str, model: str) -> dict[str, object]:
    client = OpenAIChatClient(model, base_url=f"{url}/v1", api_key="any")
    agent = Agent(client, "Be a cat.", default_options={"store": False})
    session = agent.create_session()
    first = await agent.run("hello", session=session)
    stream = agent.run("add", session=session, stream=True)
    updates = [update async for update in stream]  # `output_text.done` replaces the pieces before it
    streamed = await stream.get_final_response()
    return {
        "whole": first.text,
        "streamed": streamed.text if updates else "",
        "id": streamed.response_id,
        "tokens": first.usage_details["total_token_count"],
    }


if __name__ == "__main__":
    json.dump(asyncio.run(talk(*sys.argv[1:])), sys.stdout)
