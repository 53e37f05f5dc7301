"""`pallas-gateway schema`: the JSON Schema of `agents.yaml`, for editors."""

from __future__ import annotations

import json
from typing import Any

from pallas_gateway.client.output import result
from pallas_gateway.config.loading.cross_checks import AGENT_NAME
from pallas_gateway.config.model.deployment import OLDER_NAMES, Deployment
from pallas_gateway.config.model.parameters import OTHER_NAMES
from pallas_gateway.config.yaml.source import FREE_PREFIX

type JsonObject = dict[str, Any]

_TYPED_SCALARS = ("integer", "number", "boolean")
_PLACEHOLDER = {"type": "string", "pattern": r"^\$\{[^}]+\}$"}


def schema() -> None:
    """Print the JSON Schema of agents.yaml, for editors."""
    result(json.dumps(json_schema(), indent=2))


def json_schema() -> JsonObject:
    """Return the JSON Schema (2020-12) of `agents.yaml`; it accepts placeholders and bare keys like the loader."""
    schema = Deployment.model_json_schema()
    parameters = schema["$defs"]["DefaultParameters"]["properties"]
    parameters |= {camel: parameters[name] for camel, name in OTHER_NAMES.items() if name in parameters}
    gateway = schema["$defs"]["GatewaySettings"]["properties"]
    gateway |= {older: {**gateway[name], "deprecated": True} for older, name in OLDER_NAMES.items()}
    sections = [schema, *schema["$defs"].values()]
    for section in sections:
        section["patternProperties"] = {f"^{FREE_PREFIX}": {}}
        required = section.get("required", ())
        for key, value in section["properties"].items():
            section["properties"][key] = _lenient(value, optional=key not in required)
    agents = schema["properties"]["agents"]
    agents["patternProperties"] = {f"^{FREE_PREFIX}": {}}
    agents["propertyNames"] = {"pattern": f"^({FREE_PREFIX}.*|{AGENT_NAME.pattern})$"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "agents.yaml of Pallas Gateway",
    }


def _lenient(value: JsonObject, *, optional: bool) -> JsonObject:
    alternatives: list[JsonObject] = value.get("anyOf", [value])
    more: list[JsonObject] = []
    if any(one.get("type") in _TYPED_SCALARS for one in alternatives):
        more.append(_PLACEHOLDER)
    if (
        optional
        and {"type": "null"} not in alternatives
        and any("$ref" in one or "items" in one for one in alternatives)
    ):
        more.append({"type": "null"})
    if not more:
        return value
    kept: JsonObject = {key: value[key] for key in ("title", "description", "default") if key in value}
    bare = [{key: part for key, part in one.items() if key not in kept} for one in alternatives]
    return {**kept, "anyOf": [*bare, *more]}
