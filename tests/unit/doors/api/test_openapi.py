"""The OpenAPI document is valid, has all operations, and describes definitions as they are read."""

import re
from typing import get_args

from jsonschema import Draft202012Validator
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from pallas_gateway.composition.features import FEATURES
from pallas_gateway.doors.api import openapi
from pallas_gateway.doors.api.app import operations
from pallas_gateway.doors.api.base import template
from pallas_gateway.features.definitions.definition import _LONGEST, _MOST, KEYS, LONGEST_INSTRUCTION, in_camel_case
from pallas_gateway.features.definitions.http import requests as agents_requests
from pallas_gateway.features.threads.records import Rating
from pallas_gateway.telemetry.metrics import STATES

OPERATIONS = operations(FEATURES)
DOCUMENT = openapi.document(OPERATIONS, [])
SCHEMAS = DOCUMENT["components"]["schemas"]


def test_the_document_is_valid_openapi_and_its_schemas_are_valid_json_schema() -> None:
    assert [str(error) for error in OPENAPI_31_VALIDATOR.iter_errors(DOCUMENT)] == []
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    references = set(re.findall(r"'\$ref': '#/components/schemas/(\w+)'", str(DOCUMENT)))
    assert references <= SCHEMAS.keys()


def test_fields_have_no_titles_by_which_generators_would_name_types() -> None:
    fields = [field for schema in SCHEMAS.values() for field in schema.get("properties", {}).values()]
    assert fields
    assert not [field for field in fields if "title" in field]


def test_without_a_database_it_has_calls_and_usage_alone() -> None:
    found = openapi.document(operations(one for one in FEATURES if not one.needs_database), [])
    assert found["paths"].keys() == {"/api/v1/openapi.json", "/api/v1/calls", "/api/v1/calls/{call}", "/api/v1/usage"}
    assert "Thread" not in found["components"]["schemas"]


def test_each_operation_has_an_id_and_a_place_of_its_own() -> None:
    places = [(template(one.path), one.method) for one in OPERATIONS]
    assert len(set(places)) == len({one.id for one in OPERATIONS}) == len(OPERATIONS)
    assert {(path, method.upper()) for path, methods in DOCUMENT["paths"].items() for method in methods} == {*places}


def test_the_states_and_ratings_are_those_of_the_product() -> None:
    assert SCHEMAS["Agent"]["properties"]["state"]["enum"] == list(STATES)
    assert SCHEMAS["NewFeedback"]["properties"]["rating"]["enum"] == list(get_args(Rating.__value__))


def test_a_definition_has_the_keys_and_the_bounds_of_requests() -> None:
    keys = {*in_camel_case(dict.fromkeys(KEYS))}
    described = SCHEMAS["NewAgent"]["properties"]
    assert described.keys() == keys | {"name", "copyOf"}
    assert SCHEMAS["ChangedAgent"]["properties"].keys() == keys | {"owner"}
    assert SCHEMAS["WholeAgent"]["properties"].keys() == keys | agents_requests.ONLY_SHOWN | {"name", "owner"}
    assert described["instruction"]["maxLength"] == LONGEST_INSTRUCTION
    bounds = {
        key: next(bound for kind in schema["anyOf"] for name, bound in kind.items() if name.startswith("max"))
        for key, schema in described.items()
        if "anyOf" in schema and any(name.startswith("max") for kind in schema["anyOf"] for name in kind)
    }
    assert bounds == in_camel_case({**_LONGEST, **_MOST, "icon": 255})  # of the schema of the registry
