"""The JSON Schema agrees with what the loader does."""

from functools import cache
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from pallas_gateway.cli.schema import json_schema
from tests.unit.config.configuration_page import SECTIONS

GOOD = """\
name: my-project
version: "1.0.0"
namespace: com.example.project
registry_port: ${PORT:-8200}
x-defaults: {any: thing}
agents:
  x-template: 1
  jarvis:
    module: agents.jarvis
    depends_on:
    icons: [{src: a.png, sizes: 48x48}, {src: b.svg, sizes: [any]}]
    max_in_flight: null
    x-owner: me
    default_params: {max_tokens: 1, topP: 0.5, tools_allowlist: [a/b]}
    caller_params: [temperature, maxTokens]
  helper:
    instruction: You are helper.
    model: ${MODEL:-passthrough}
    servers:
    tools: [argos__search]
    agents: [jarvis]
gateway:
  tool_names: [send_message, "{agent}"]
  tls: null
  queue_seconds: 2
"""


@cache
def validator() -> Draft202012Validator:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_every_key_has_a_meaning() -> None:
    for _, model in SECTIONS:
        for key, known in model.model_fields.items():
            assert known.description, f"{model.__name__}.{key}"


def test_the_schema_accepts_what_the_loader_accepts_also_by_older_names() -> None:
    validator().validate(yaml.safe_load(GOOD))
    validator().validate({**yaml.safe_load(GOOD), "gateway": {"threads": "sqlite:///pallas.db"}})


@pytest.mark.parametrize(
    "change",
    [
        {"hots": "unknown key"},
        {"name": None},
        {"agents": {}},
        {"agents": {"jarvis": {}}},
        {"agents": {"jarvis": {"module": "m", "instruction": "You are jarvis."}}},
        {"agents": {"jarvis": {"module": "m", "modul": "m"}}},
        {"agents": {"_bad name": {"module": "m"}}},
        {"agents": {"jarvis": {"module": "m", "port": 0}}},
        {"registry_port": "8200"},
        {"gateway": {"max_in_flight": 0}},
        {"gateway": {"tls": {"certfile": "c"}}},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(change: dict[str, Any]) -> None:
    assert not validator().is_valid({**yaml.safe_load(GOOD), **change})
