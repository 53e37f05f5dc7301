"""Wire formats of other providers than OpenAI: the bytes of a streamed answer, made by the dialects of the tests.

The dialects check what they write against the providers' own libraries, which takes seconds to import and milliseconds
per event. So a format is imported with its first request, and its callers keep the bytes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from benchmarks.fakes.http import chunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.providers.provider import Dialect

CHAT = "chat completions"
_BY_PATH = (("/messages", "Anthropic"), ("/responses", "Responses"), (":streamGenerateContent", "Gemini"))


def of(path: str) -> str:
    """The format of a request's path."""
    return next((name for ending, name in _BY_PATH if path.endswith(ending)), CHAT)


def events(format_name: str, texts: Sequence[str]) -> Sequence[bytes]:
    """The chunks of an answer in these pieces, one for each; none for `CHAT`, which is the scripted LLM's own."""
    # Imported here: see the module.
    from tests.support.scripted_llm import Say, Usage  # noqa: PLC0415

    dialect: Dialect = getattr(import_module(f"tests.support.providers.{format_name.lower()}"), format_name)()
    request = dialect.request_class(1, {"model": "scripted"}, {})
    turn = Say(tuple(texts), usage=Usage(100, 20))
    parts = [dialect.opening(turn, request), *map(dialect.piece, texts), dialect.ending(turn, request)]
    return [chunk(part) for part in parts if part]
