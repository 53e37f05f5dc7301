"""The OpenAPI document states the limits and patterns by which requests are checked."""

from typing import Any

from pallas_gateway.telemetry.metrics import STATES
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
