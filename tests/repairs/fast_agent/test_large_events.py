"""Results of tools with images are refused."""

import base64

from fastmcp import FastMCP
from mcp_types import ImageContent

from tests.support.attached import attached_to

IMAGE = base64.b64encode(b"0" * 2 * 2**20).decode()


async def test_an_image_of_2_mb_arrives() -> None:
    server = FastMCP("tools")

    @server.tool
    def draw() -> ImageContent:
        """Draw."""
        return ImageContent(type="image", data=IMAGE, mime_type="image/png")

    async with attached_to(server, "initialize") as (aggregator, _):
        result = await aggregator.call_tool("tools__draw", {})
    assert not result.is_error
    assert [block.data for block in result.content if isinstance(block, ImageContent)] == [IMAGE]
