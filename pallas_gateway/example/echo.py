"""The smallest agent: fast-agent's `passthrough` repeats its input. It needs no downstream and no key."""

from pathlib import Path

from fast_agent import FastAgent

CONFIG = Path(__file__).with_name("fastagent.config.yaml")

fast = FastAgent("echo", config_path=str(CONFIG), parse_cli_args=False)


@fast.agent(name="echo", model="passthrough")
async def echo() -> None:
    """fast-agent requires a function to decorate; the gateway never calls it."""
