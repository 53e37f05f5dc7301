"""The agent for people. It delegates questions to its peer `research`."""

import os
from pathlib import Path

from fast_agent import FastAgent

from pallas_gateway.example.models import example_model

CONFIG = Path(__file__).with_name("fastagent.config.yaml")

fast = FastAgent("concierge", config_path=str(CONFIG), parse_cli_args=False)


@fast.agent(
    name="concierge",
    instruction="You are a friendly concierge. Hand every question of fact on to research, one call for each question, "
    "and answer in a few sentences from what comes back. Say so when it knows nothing. Answer small talk yourself.",
    model=example_model(os.environ),
    servers=["research"],
    # A hosted agent offers its message tool under two names; one is enough for a model.
    tools={"research": ["send_message"]},
)
async def concierge() -> None:
    """fast-agent requires a function to decorate; the gateway never calls it."""
