"""A text that is repeated at once is dropped.

Symptom: fast-agent drops a text that begins with all text before it: of the tokens "1", "1", "2" it makes "12".

Repair: a chunk whose text equals all text before it is a piece of the answer.
"""

from __future__ import annotations

from typing import Any

from pallas_gateway.changes.change import REPAIR, Change, Loaded, Name

_MODULE = "fast_agent.llm.provider.openai.llm_openai"
CHANGE = Change(
    "repeated-texts",
    REPAIR,
    ("fast-agent-mcp",),
    seen_in="0.10.48",
    when=Loaded(_MODULE),
    replaces=(Name(f"{_MODULE}:OpenAILLM._process_stream_chunk_common", ("self", "chunk", "cumulative_content")),),
    gone_when="fast-agent treats texts as pieces unless the server is known to repeat them",
)


def changed(original: Any, holder: Any) -> Any:
    """Have fast-agent process such a text as if it were the first one."""
    del holder

    def process(self: Any, chunk: Any, *, cumulative_content: str, **options: Any) -> Any:
        if not cumulative_content or not _is_text(chunk, cumulative_content):
            return original(self, chunk, cumulative_content=cumulative_content, **options)
        text, *others = original(self, chunk, cumulative_content="", **options)
        return (cumulative_content + text, *others)

    return process


def _is_text(chunk: Any, text: str) -> bool:
    """Return True for a chunk with this text and nothing else."""
    choice = chunk.choices[0] if chunk.choices else None
    return (
        choice is not None
        and choice.delta.content == text
        and not choice.delta.tool_calls
        and choice.finish_reason is None
    )
