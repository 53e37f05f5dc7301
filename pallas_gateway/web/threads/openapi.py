"""The OpenAPI document of `/api/v1`: `openapi.yaml`, with the schemas that depend on the agents."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pallas_gateway import __version__
from pallas_gateway.calls.call import PDF
from pallas_gateway.calls.image_bytes import BASE64_PATTERNS
from pallas_gateway.calls.parameters import params_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pallas_gateway.hosting.hosted_agent import HostedAgent

type Json = dict[str, Any]

_FILE = Path(__file__).with_suffix(".yaml")


def document(agents: Sequence[HostedAgent]) -> Json:
    """The document for a caller who may view `agents`; they decide the types of images and the `params`."""
    written = _written()
    components = written["components"]
    schemas = components["schemas"]
    of_agents = {"SentImage": _sent_image(agents, schemas["Image"]), "Params": _params(agents)}
    return {
        **written,
        "info": {**written["info"], "version": __version__},
        "components": {**components, "schemas": {**schemas, **of_agents}},
    }


@cache
def _written() -> Json:
    written: Json = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    del written["x-shared"]
    return written


def _sent_image(agents: Sequence[HostedAgent], image: Json) -> Json:
    """An image or a PDF of a type that the model of any running agent accepts."""
    types = sorted({kind for agent in agents if agent.model is not None for kind in agent.model.attachment_types})
    if not types:
        return image
    data, name = image["properties"]["data"], {"name": image["properties"]["name"]}
    by_type = {kind: {**data, "pattern": BASE64_PATTERNS.get(kind, data["pattern"])} for kind in types}
    return {
        "anyOf": [
            {**image, "properties": {"data": data, "mime_type": {"const": kind}, **(name if kind == PDF else {})}}
            for kind, data in by_type.items()
        ]
    }


def _params(agents: Sequence[HostedAgent]) -> Json:
    """The parameters of all agents; `GET /api/v1/agents/{name}` has those of one agent."""
    schemas = [schema for agent in agents if (schema := params_schema(agent.settings)) is not None]
    properties = {name: schema for one in schemas for name, schema in one["properties"].items()}
    return {
        "type": "object",
        "description": "Parameters of this one call. Which of them an agent takes, its own `params` says.",
        "properties": properties,
        "additionalProperties": False,
    }
