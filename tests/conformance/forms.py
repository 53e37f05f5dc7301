"""The downstream of the fixture agent that asks the forms of the suite, in as many rounds as a fixture tool has."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

from tests.support.listener import serve_app

CHOICES = ["option1", "option2", "option3"]
TITLED = [{"const": f"value{number}", "title": f"Choice {number}"} for number in (1, 2, 3)]
NAME = {"name": {"type": "string"}}
FORMS: dict[str, list[dict[str, Any]]] = {
    "test_elicitation": [{"username": {"type": "string"}, "email": {"type": "string"}}],
    "test_elicitation_sep1034_defaults": [
        {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
    ],
    "test_elicitation_sep1330_enums": [
        {
            "untitledSingle": {"type": "string", "enum": CHOICES},
            "titledSingle": {"type": "string", "oneOf": TITLED},
            "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": CHOICES}},
            "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
        }
    ],
    "test_input_required_result_elicitation": [NAME],
    "test_input_required_result_multi_round": [NAME, {"color": {"type": "string"}}],
    "test_input_required_result_request_state": [{"ok": {"type": "boolean"}}],
    "test_input_required_result_tampered_state": [{"ok": {"type": "boolean"}}],
    "confirm_delete": [{"confirm": {"type": "boolean"}}],
    "multi_input": [{**NAME, "confirm": {"type": "boolean"}}],
    "test_tool_with_task": [NAME],
}
"""The fields of each form that a fixture tool asks."""


def forms_server() -> MCPServer:
    """Return a server of 2026-07-28 whose tool `ask` has one fixture tool's forms filled in."""
    server = MCPServer("forms")

    @server.tool(structured_output=False)
    def ask(ctx: Context, tool: str) -> str | InputRequiredResult:
        """Ask the forms of a fixture tool."""
        number = int(ctx.request_state or 0)
        if number == len(FORMS[tool]):
            answers = [one for one in (ctx.input_responses or {}).values() if isinstance(one, ElicitResult)]
            return json.dumps([{"action": one.action, "content": one.content} for one in answers])
        schema = {"type": "object", "properties": FORMS[tool][number]}
        request = ElicitRequest(params=ElicitRequestFormParams(message=f"Form {number}", requested_schema=schema))
        return InputRequiredResult(input_requests={"form": request}, request_state=str(number + 1))

    return server


@asynccontextmanager
async def forms_downstream() -> AsyncGenerator[str]:
    async with serve_app(forms_server().streamable_http_app(stateless_http=True)) as listener:
        yield f"{listener.base_url}/mcp"
