"""The downstream `bookings` of the example: one tool asks the caller a question, the other is destructive.

`python -m pallas_gateway.example.bookings` runs it, as fast-agent does by `fastagent.config.yaml`. It keeps nothing.
"""

from typing import Annotated, Literal

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

server = MCPServer("bookings", instructions="Books rooms, and cancels bookings.")


class Details(BaseModel):
    """The form: its fields are texts, numbers, booleans and choices, as MCP requires."""

    name: str = Field(min_length=1, max_length=40, description="who comes")
    people: int = Field(2, ge=1, le=8)
    room: Literal["garden", "library"] = "garden"


def ask_for_details() -> Elicit[Details]:
    """Ask the caller, in the form of the connection's protocol era."""
    return Elicit("Who is the room for?", Details)


@server.tool(structured_output=False)
def book(details: Annotated[ElicitationResult[Details], Resolve(ask_for_details)]) -> str:
    """Book a room. The person is asked for the details."""
    if not isinstance(details, AcceptedElicitation):
        return "No room was booked: the person gave no details."
    form = details.data
    return f"The {form.room} room is booked for {form.name} ({form.people} people)."


@server.tool(structured_output=False, annotations=ToolAnnotations(destructive_hint=True))
def cancel(which: Literal["old", "all"] = "old") -> str:
    """Cancel bookings. This cannot be undone."""
    return f"Cancelled {which} bookings."


if __name__ == "__main__":
    server.run()
