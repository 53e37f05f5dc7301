"""The agent that asks its caller: its downstream asks by a form, and the caller approves what cannot be undone."""

import os
from pathlib import Path

from fast_agent import FastAgent

from pallas_gateway.example.models import example_model

CONFIG = Path(__file__).with_name("fastagent.config.yaml")

fast = FastAgent("desk", config_path=str(CONFIG), parse_cli_args=False)


@fast.agent(
    name="desk",
    instruction="You book rooms and cancel bookings with your tools, one after the other. The tools ask the person for "
    "what they need; do not ask for it yourself. Say in the end what was done.",
    model=example_model(os.environ),
    servers=["bookings"],
)
async def desk() -> None:
    """fast-agent requires a function to decorate; the gateway never calls it."""
