"""The agent that plays the suite's fixture tools (the gateway of test_conformance.py hosts this file's text).

Its message is the name of a fixture tool; to the model's answer it adds the content which that tool is to return.
"""

from typing import override

from fast_agent import FastAgent
from fast_agent.agents import McpAgent
from fast_agent.llm.request_params import RequestParams
from fast_agent.types import PromptMessageExtended
from mcp_types import AudioContent, ContentBlock, EmbeddedResource, ImageContent, TextResourceContents, Tool

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="

_image = ImageContent(type="image", data=PIXEL, mime_type="image/png")
_audio = AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")
_resource = EmbeddedResource(
    type="resource", resource=TextResourceContents(uri="test://embedded", mime_type="text/plain", text="embedded")
)
CONTENT: dict[str, list[ContentBlock]] = {
    "test_image_content": [_image],
    "test_audio_content": [_audio],
    "test_embedded_resource": [_resource],
    "test_multiple_content_types": [_image, _resource],
}

fast = FastAgent("fixture", parse_cli_args=False)


class FixtureAgent(McpAgent):
    @override
    async def generate_impl(
        self,
        messages: list[PromptMessageExtended],
        request_params: RequestParams | None = None,
        tools: list[Tool] | None = None,
    ) -> PromptMessageExtended:
        answer = await super().generate_impl(messages, request_params, tools)
        answer.content.extend(CONTENT.get(messages[-1].first_text(), []))
        return answer


@fast.custom(
    FixtureAgent, name="fixture", instruction="Play the tool you are told.", servers=["tools", "forms"], default=True
)
async def agent() -> None: ...
