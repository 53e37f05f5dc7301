"""A server of release 1 of the MCP SDK with a tool that asks; run by the Python of this folder's environment."""

# mypy: ignore-errors
# It sees release 2 of the SDK.

from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel, Field

server = FastMCP("older")


class Details(BaseModel):
    """What the tool asks for."""

    name: str = Field(min_length=1)
    people: int | None = Field(default=2, ge=1, le=8)


@server.tool()
async def name(ctx: Context) -> str:
    """Ask the caller who books."""
    answer = await ctx.elicit("Who books?", schema=Details)
    return f"{answer.action}: {answer.data!r}" if answer.action == "accept" else answer.action


if __name__ == "__main__":
    server.run()
