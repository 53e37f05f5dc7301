"""Calls as JSON: the keys that clients rely on, and names that hold anything."""

import json
from dataclasses import replace

from pallas_gateway.composition.features import FEATURES
from pallas_gateway.core.running_call import CallOutcome, ListedCall, ToolTime
from pallas_gateway.doors.api import openapi
from pallas_gateway.doors.api.app import operations
from pallas_gateway.features.running_calls import api

HALF = "half \ud83d \u202e\x1b[2J\n"
RUNNING = ListedCall("a1", None, "echo", "key:ci", "key:ci", "mcp", 1_795_000_000.1234, 1.23456, 2, 30, waiting=True)
ENDED = ListedCall(
    "b2", "a1", "echo", HALF, None, "openai", 1_795_000_000.0, 2.0, 1, 5,
    end=CallOutcome("error", "cancelled", (ToolTime(HALF, 0.5, 1.00049, None),), 3),
)  # fmt: skip
SCHEMAS = openapi.document(operations(one for one in FEATURES if not one.needs_database), [])["components"]["schemas"]


def test_a_running_call_has_the_keys_of_the_openapi_document() -> None:
    document = api.listed_call(RUNNING, 2)
    assert document == {
        "id": "a1", "parent": None, "agent": "echo", "caller": "key:ci", "api": "mcp",
        "startedAt": "2026-11-18T11:06:40.123Z", "step": 2, "seconds": 1.235, "tokens": 30, "waiting": True,
        "worker": 2,
    }  # fmt: skip
    assert sorted(SCHEMAS["Call"]["required"]) == sorted(document)
    estimated = api.listed_call(replace(RUNNING, is_estimated=True), 2)
    assert estimated == {**document, "estimated": True}
    assert sorted(SCHEMAS["Call"]["properties"]) == sorted(estimated)


def test_an_ended_call_has_its_outcome_and_tools_and_not_its_owner() -> None:
    document = api.listed_call(ENDED, 1)
    assert sorted(SCHEMAS["EndedCall"]["required"]) == sorted(document)
    assert sorted(SCHEMAS["EndedCall"]["properties"]) == sorted([*document, "estimated"])
    assert (document["outcome"], document["stopReason"], document["toolsLeftOut"]) == ("error", "cancelled", 3)
    assert document["endedAt"] == "2026-11-18T11:06:42.000Z"
    assert document["tools"] == [{"name": HALF, "start": 0.5, "seconds": 1.0, "ok": None}]


def test_names_with_half_a_surrogate_pair_are_sent_in_ascii() -> None:
    body = bytes(api.ascii_response({"calls": [api.listed_call(ENDED, 1)]}).body)
    assert body.isascii()
    assert json.loads(body)["calls"][0]["caller"] == HALF
