"""`pallas-gateway export`: print the agents of `agents.yaml`, for `apply` here or elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from pallas_gateway.cli.project import ConfigOption
from pallas_gateway.client.output import result
from pallas_gateway.client.usage import UsageError
from pallas_gateway.config.loading.environment import config_path
from pallas_gateway.config.loading.loader import MISSING
from pallas_gateway.config.problems import ConfigurationError, Problem, did_you_mean
from pallas_gateway.config.yaml.definitions import defined_in
from pallas_gateway.config.yaml.editing import rendered

if TYPE_CHECKING:
    from pathlib import Path


def export(
    agent: Annotated[str | None, typer.Argument(help="One agent; without it, all.")] = None,
    config: ConfigOption = None,
) -> None:
    """Print the definition of one or all agents as YAML for `apply`; placeholders are kept."""
    path = config_path(os.environ, config)
    agents = defined_in(text_of(path)[1], str(path)).agents
    if agent is not None and agent not in agents:
        raise UsageError(f"{path} has no agent '{agent}'{did_you_mean(agent, agents)}.")
    result(rendered(agents if agent is None else {agent: agents[agent]}).removesuffix("\n"))


def text_of(path: Path, missing: str = MISSING) -> tuple[bytes, str]:
    """Return the content of a file as bytes and as text; `missing` is the message if it does not exist.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        content = path.read_bytes()
        return content, content.decode("utf-8-sig")
    except FileNotFoundError:
        why = missing
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        why = "is not UTF-8 text; save it as UTF-8"
    raise ConfigurationError([Problem(str(path), None, "", why)])
