"""Names of agents of the database. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_gateway.config.loading.cross_checks import (
    AGENT_NAME,
    MAX_REGISTRY_NAME_CHARACTERS,
    MESSAGE_TOOL,
    TOOL_SEPARATOR,
    registry_name,
)
from pallas_gateway.config.model.values import HEALTH_TOOL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pallas_gateway.config.model.deployment import Deployment

LONGEST_NAME = 64


def key_of(name: str) -> str:
    """Return what is the same of two names that take each other."""
    return name.lower().replace("_", "-")


def taker_of(name: str, names: Iterable[str]) -> str | None:
    """Return which of `names` takes a name; None if it is free."""
    key = key_of(name)
    return next((one for one in names if key_of(one) == key), None)


def why_no_name(name: object, deployment: Deployment) -> str | None:
    """Return why an agent of the database cannot have a name; None if it can."""
    if not isinstance(name, str) or not AGENT_NAME.fullmatch(name):
        return "must begin with a letter or digit and hold only letters, digits, '_', '.' and '-'"
    if len(name) > LONGEST_NAME:
        return f"must have at most {LONGEST_NAME} characters"
    if TOOL_SEPARATOR in name:
        return f"must not hold '{TOOL_SEPARATOR}', which separates agents and tools"
    if name in {MESSAGE_TOOL, HEALTH_TOOL, *deployment.gateway.tool_names}:
        return f"an agent cannot be named like the tool '{name}'"
    if len(registry_name(deployment, name)) > MAX_REGISTRY_NAME_CHARACTERS:
        return f"its registry name with the namespace is longer than {MAX_REGISTRY_NAME_CHARACTERS} characters"
    return None
