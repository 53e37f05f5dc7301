"""The agent that searches its downstream `library`."""

import os
from pathlib import Path

from fast_agent import FastAgent

from pallas_gateway.example.models import example_model

CONFIG = Path(__file__).with_name("fastagent.config.yaml")

fast = FastAgent("research", config_path=str(CONFIG), parse_cli_args=False)


@fast.agent(
    name="research",
    instruction="You research questions about MCP, fast-agent and Pallas Gateway. Search the library first, answer "
    "only from its notes, and quote them. Say so when there is no note. Ask it for the time when that matters.",
    model=example_model(os.environ),
    servers=["library"],
)
async def research() -> None:
    """fast-agent requires a function to decorate; the gateway never calls it."""
