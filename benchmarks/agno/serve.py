"""agno's AgentOS with agents like the gateway's: `python serve.py PORT AGENTS.json`, in the environment beside this.

AGENTS.json: `{name: {"llm_url": …, "downstreams": [URL or command, …]}}`. Agents and connections are made once and
shared by all calls, which is how agno is meant to be run.
"""

import json
import sys
from pathlib import Path

import uvicorn
from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from agno.os import AgentOS
from agno.os.config import MCPConfig
from agno.tools.mcp import MCPTools

REPOSITORY = Path(__file__).parents[2]


def main(port: int, agents_file: Path) -> None:
    agents = [
        Agent(
            id=name,
            name=name,
            model=OpenAILike(id="scripted", api_key="not-a-key", base_url=agent["llm_url"]),
            tools=[tools_of(server) for server in agent["downstreams"]],
            instructions=f"You are {name}.",
            telemetry=False,
        )
        for name, agent in json.loads(agents_file.read_text()).items()
    ]
    agent_os = AgentOS(agents=agents, mcp=MCPConfig(default_tools=True), telemetry=False)
    uvicorn.run(agent_os.get_app(), host="127.0.0.1", port=port, log_level="warning")


def tools_of(server: str) -> MCPTools:
    if server.startswith("http"):
        return MCPTools(url=server, transport="streamable-http")
    return MCPTools(command=server, env={"PYTHONPATH": str(REPOSITORY)}, transport="stdio")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
