"""The two things every end-to-end test asks of an agent, in one line each, in either protocol era."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from tests.support.clients import MODERN_VERSION, RawReply, raw_client

EACH_VERSION = ("2025-06-18", MODERN_VERSION)  # for pytest.mark.parametrize("version", EACH_VERSION)


@dataclass(frozen=True)
class Answer:
    """The result of one tool call; `meta` is its `_meta["pallas/call"]`."""

    text: str
    is_error: bool
    meta: Mapping[str, Any]


async def ask(
    url: str,
    message: str = "hello",
    *,
    tool: str = "send_message",
    version: str = MODERN_VERSION,
    bearer: str | None = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    **arguments: Any,
) -> Answer:
    """Call an agent's message tool; `arguments` go beside the message."""
    async with raw_client(url, protocol_version=version, bearer=bearer, headers=headers, tls=tls) as client:
        return answer_of(await client.call_tool(tool, {"message": message, **arguments}))


async def health(url: str, *, version: str = MODERN_VERSION, bearer: str | None = None) -> dict[str, Any]:
    async with raw_client(url, protocol_version=version, bearer=bearer) as client:
        document = json.loads(answer_of(await client.call_tool("get_health")).text)
    return cast("dict[str, Any]", document)


def answer_of(reply: RawReply) -> Answer:
    """The tool result in a reply; `AssertionError` if it holds none."""
    result = reply.result
    text = "".join(block["text"] for block in result["content"] if block["type"] == "text")
    return Answer(text, bool(result.get("isError")), result.get("_meta", {}).get("pallas/call", {}))
