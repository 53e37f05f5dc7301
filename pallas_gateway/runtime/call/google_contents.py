"""Contents of Google's own API in a history: fast-agent sends of earlier turns neither tool calls nor signatures.

Within a call fast-agent keeps the contents of the API in the memory of its LLM, and sends these. So a call whose
history has steps begins with that memory: the stored contents, with the signatures that a model gave its tool calls.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_types import TextContent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fast_agent.types import PromptMessageExtended

CONTENT = "pallas-google-content"
"""The channel of a message with its content in Google's API, as JSON."""
_PROVIDER = "google"


def content_channel(llm: Any, message: PromptMessageExtended) -> list[TextContent] | None:
    """Return the channel of a message that Google's API has just answered; None if it has no signature to keep."""
    if llm.provider.config_name != _PROVIDER or not (contents := llm.history.get()):
        return None
    content = contents[-1].model_dump(mode="json", exclude_none=True)
    parts = content.get("parts", ())
    called = {part["function_call"].get("id") for part in parts if "function_call" in part}
    if called != {*(message.tool_calls or {})} or not any("thought_signature" in part for part in parts):
        return None
    return [TextContent(type="text", text=json.dumps({"role": "model", "parts": parts}))]


def load_contents(llm: Any, history: Sequence[PromptMessageExtended]) -> None:
    """Begin the memory of Google's LLM with a history; without effect on others."""
    if llm.provider.config_name != _PROVIDER or not any(message.tool_calls for message in history):
        return
    from google.genai import types  # noqa: PLC0415  of this provider only

    contents: list[Any] = []
    names: dict[str, str] = {}
    for message in history:
        if message.tool_calls:
            names = {id_: call.params.name for id_, call in message.tool_calls.items()}
            contents.append(_content_of(types, llm, message))
        elif message.tool_results:
            results = [(names[id_], id_, result) for id_, result in message.tool_results.items()]
            contents += llm._converter.convert_function_results_to_google(results)
        else:
            contents += llm._converter.convert_to_google_content([message])
    llm.history.set(contents)


def _content_of(types: Any, llm: Any, message: PromptMessageExtended) -> Any:
    if (stored := (message.channels or {}).get(CONTENT)) and isinstance(stored[0], TextContent):
        return types.Content.model_validate_json(stored[0].text)
    texts = llm._converter.convert_to_google_content([message])
    parts = [part for content in texts for part in content.parts]
    for id_, call in (message.tool_calls or {}).items():
        called = types.FunctionCall(id=id_, name=call.params.name, args=call.params.arguments or {})
        parts.append(types.Part(function_call=called))
    return types.Content(role="model", parts=parts)
