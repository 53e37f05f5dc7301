"""The OpenAPI document is valid, and states the routes, limits and patterns by which requests are checked."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

from jsonschema import Draft202012Validator
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from pallas_gateway.definitions.definition import KEYS, in_camel_case
from pallas_gateway.telemetry.metrics import STATES
from pallas_gateway.web.agents import requests as agents_requests
from pallas_gateway.web.api.app import routes
from pallas_gateway.web.threads import openapi, requests

DOCUMENT = openapi.document([])
SCHEMAS = DOCUMENT["components"]["schemas"]


def query(path: str) -> dict[str, Any]:
    return {one["name"]: one["schema"] for one in DOCUMENT["paths"][f"/api/v1/{path}"]["get"]["parameters"]}


def test_the_pages_of_threads_and_messages_have_the_limits_of_requests() -> None:
    limit = {"type": "integer", "minimum": 1, "maximum": requests.MOST, "default": requests.DEFAULT_LIMIT}
    threads, messages = query("agents/{name}/threads"), query("threads/{id}/messages")
    assert threads["limit"] == messages["limit"] == limit
    assert threads["cursor"]["pattern"] == f"^{requests.CURSOR.pattern}$"
    assert messages["after"]["maximum"] == requests.LAST_TURN


def test_the_schemas_have_the_limits_of_requests_and_the_states_of_agents() -> None:
    assert SCHEMAS["ThreadId"]["pattern"] == f"^{requests.THREAD_ID.pattern}$"
    assert SCHEMAS["NewThread"]["properties"]["title"]["anyOf"][0]["maxLength"] == requests.LONGEST_TITLE
    assert SCHEMAS["GivenAnswers"]["properties"]["answers"]["maxProperties"] == requests.MOST_ANSWERS
    assert SCHEMAS["Agent"]["properties"]["state"]["enum"] == list(STATES)


def test_the_document_is_valid_openapi_and_its_schemas_are_valid_json_schema() -> None:
    assert [str(error) for error in OPENAPI_31_VALIDATOR.iter_errors(DOCUMENT)] == []
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    references = set(re.findall(r"'\$ref': '#/components/schemas/(\w+)'", str(DOCUMENT)))
    assert references <= SCHEMAS.keys()


def test_each_route_is_in_the_document_with_its_methods_and_an_operation_id_of_its_own() -> None:
    served = {(re.sub(r"\{[\w:]+\}", "{}", one.path), method) for one in every_route() for method in one.app.methods}
    operations = {
        (re.sub(r"\{\w+\}", "{}", path), method.upper()): operation["operationId"]
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        if method != "parameters"
    }
    assert operations.keys() == served - {("/api/v1/openapi.json", "GET")}
    assert len(set(operations.values())) == len(operations)


def every_route() -> list[Any]:
    stored = SimpleNamespace(definitions=None, dropped_threads=None, threads=None)
    return [*routes(cast("Any", SimpleNamespace(stored=stored)))]


def test_a_definition_has_the_keys_and_the_parameters_of_requests() -> None:
    keys = {*in_camel_case(dict.fromkeys(KEYS))}
    assert SCHEMAS["NewAgent"]["properties"].keys() == keys | {"name", "copyOf"}
    assert SCHEMAS["ChangedAgent"]["properties"].keys() == keys | {"owner"}
    assert SCHEMAS["WholeAgent"]["properties"].keys() == keys | agents_requests.ONLY_SHOWN | {"name", "owner"}
