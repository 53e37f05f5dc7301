"""agno's AgentOS with agents like the gateway's: `python serve.py PORT AGENTS.json`, in the environment beside this.

AGENTS.json: `{name: {"llm_url": …, "downstreams": [URL or command, …], "peers": [name, …]}}`, peers before the agents
that call them by a tool. Agents and connections are made once and shared by all calls, which is how agno is meant to
be run.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from agno.os import AgentOS
from agno.os.config import MCPConfig
from agno.tools.mcp import MCPTools

REPOSITORY = Path(__file__).parents[2]


def main(port: int, agents_file: Path) -> None:
    agents: dict[str, Agent] = {}
    for name, agent in json.loads(agents_file.read_text()).items():
        agents[name] = Agent(
            id=name,
            name=name,
            model=OpenAILike(id="scripted", api_key="not-a-key", base_url=agent["llm_url"]),
            tools=[*map(tools_of, agent["downstreams"]), *(tool_of(agents[peer]) for peer in agent["peers"])],
            instructions=f"You are {name}.",
            telemetry=False,
        )
    agent_os = AgentOS(agents=list(agents.values()), mcp=MCPConfig(default_tools=True), telemetry=False)
    uvicorn.run(agent_os.get_app(), host="127.0.0.1", port=port, log_level="warning")


def tools_of(server: str) -> MCPTools:
    if server.startswith("http"):
        return MCPTools(url=server, transport="streamable-http")
    return MCPTools(command=server, env={"PYTHONPATH": str(REPOSITORY)}, transport="stdio")


def tool_of(agent: Agent) -> Callable[[str], Awaitable[str]]:
    async def send_message(message: str) -> str:
        """Send a message to the agent and get its answer."""
        return str((await agent.arun(message)).content)

    send_message.__name__ = f"{agent.name}__send_message"
    return send_message


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
