"""Results of tools in forms that every model can use, and lines of the gateway about them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mcp_types import AudioContent, CallToolResult, ContentBlock, ImageContent, ResourceLink, TextContent

from pallas_gateway.calls.image_bytes import is_base64

RAN = "The tool ran; "
"""Beginning of each line about a result that is not as it should be: the model shall not call the tool again."""
NO_REASON = "The tool failed and gave no reason."
NOT_BASE64 = "The tool returned an image that cannot be read: it is not base64."


def add_line(result: CallToolResult, line: str) -> None:
    """Add a line about a result after what the tool has said."""
    spell_out(result)
    result.content = [*result.content, TextContent(type="text", text=line)]


def spell_out(result: CallToolResult) -> None:
    """Put structured content after the text, unless that says the same: fast-agent shows the model no text with it."""
    if (structured := result.structured_content) is None:
        return
    result.structured_content = None
    if not any(json_of(text) == structured for text in _texts(result)):
        text = json.dumps(structured, ensure_ascii=False)
        result.content = [*result.content, TextContent(type="text", text=text)]


def make_legible(result: CallToolResult) -> None:
    """Say in text what models cannot use of a result; an error has its words first, and a reason."""
    content = [one for block in result.content for one in _legible(block)]
    if content != result.content:
        result.content = content
        spell_out(result)
    if result.is_error:
        spell_out(result)
        if not any(text.strip() for text in _texts(result)):
            result.content = [TextContent(type="text", text=NO_REASON), *result.content]


def json_of(text: str) -> object:
    """Return the value of a text in JSON; the text itself if it is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):  # the latter: thousands of brackets
        return text
    return value


def _legible(block: ContentBlock) -> Iterator[ContentBlock]:
    """The block, with a text for models that cannot use it, or in its place."""
    match block:
        case ImageContent(data=data) if not is_base64(data):
            yield TextContent(type="text", text=NOT_BASE64)
            return
        case AudioContent(mime_type=mime_type):
            yield TextContent(type="text", text=f"The tool returned audio ({mime_type}).")
        case ResourceLink(uri=uri, title=title, name=name, description=description):
            about = f", {description}" if description else ""
            yield TextContent(type="text", text=f"Link: {uri} ({title or name}{about})")
    yield block


def _texts(result: CallToolResult) -> list[str]:
    return [one.text for one in result.content if isinstance(one, TextContent)]
