"""Documents for the Responses API stay at the provider.

Symptom: each call uploads its PDFs to the provider's Files API, and never deletes them.

Repair: the request has the file, as `file_data`.
"""

from __future__ import annotations

import mimetypes
from functools import wraps
from typing import TYPE_CHECKING, Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    type Normalizes = Callable[[Any, Any, dict[str, Any]], Coroutine[Any, Any, tuple[dict[str, Any], bool]]]

_FILES = "fast_agent.llm.provider.openai.responses_files"
CHANGE = Change(
    "inline-files",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_FILES),
    replaces=(Name(f"{_FILES}:ResponsesFileMixin._normalize_input_file_part", ("self", "client", "part")),),
    gone_when="fast-agent sends `file_data` inline, as it does for Codex, or deletes what it has uploaded",
)


def changed(original: Normalizes, holder: object) -> Normalizes:
    """Leave a file in its request, as a data URI."""
    del holder

    @wraps(original)
    async def normalize_input_file_part(self: Any, client: Any, part: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        data = part.get("file_data")
        if part.get("file_id") or not isinstance(data, str):
            return await original(self, client, part)
        if data.startswith("data:"):
            return part, False
        mime_type = mimetypes.guess_type(part.get("filename") or "")[0] or "application/octet-stream"
        return {**part, "file_data": f"data:{mime_type};base64,{data}"}, True

    return normalize_input_file_part
