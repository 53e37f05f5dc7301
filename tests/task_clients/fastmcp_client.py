"""Call an agent by FastMCP with its extension for tasks: `fastmcp_client.py URL result|cancel`, JSON on stdout."""

# mypy: ignore-errors
# It does not see this folder's environment.

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from fastmcp_tasks import call_tool_task


async def call(url: str, mode: str) -> dict[str, object]:
    asked = []

    async def answer(message, *_):
        asked.append(message)
        return ElicitResult(action="accept", content={"decision": "once"})

    async with Client(url, elicitation_handler=answer) as client:
        task = await call_tool_task(client, "send_message", {"message": "go"})
        if mode == "cancel":
            await task.cancel()
        text = None
        try:
            text = (await task.result()).content[0].text
        except ToolError:
            if mode != "cancel":
                raise
        return {"kind": "task", "status": (await task.status()).status, "asked": len(asked), "text": text}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(call(*sys.argv[1:]))))
