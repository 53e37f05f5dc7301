"""Gemini's `generateContent` and `streamGenerateContent`, made of the types of Google's own library."""

import json
from dataclasses import dataclass
from typing import ClassVar, override

from google.genai import types

from tests.support.providers.provider import Streamed
from tests.support.providers.tool_rounds import signature_of
from tests.support.scripted_llm import CallTools, Json, LlmRequest, Say, Usage, call_id

_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}


@dataclass(frozen=True)
class GeminiRequest(LlmRequest):
    @property
    @override
    def model(self) -> str:
        return self.path.rpartition("/")[2].partition(":")[0]

    @property
    @override
    def is_streamed(self) -> bool:
        return self.path.endswith(":streamGenerateContent")

    @property
    @override
    def messages(self) -> list[Json]:
        """The conversation in the form of chat completions, without results of tools."""
        turns = [(_ROLES[content["role"]], _text(content["parts"])) for content in self.body["contents"]]
        return [{"role": role, "content": text} for role, text in turns if text]

    @property
    @override
    def tools(self) -> list[str]:
        declared = (one for tool in self.body.get("tools") or [] for one in tool.get("functionDeclarations", []))
        return [one["name"] for one in declared]

    @property
    @override
    def called(self) -> list[str]:
        return [one["name"] for one in self._parts("functionCall")]

    @property
    @override
    def images(self) -> list[tuple[str, str]]:
        return [(kind, data) for kind, data in self._inline() if kind != "application/pdf"]

    @property
    @override
    def documents(self) -> list[tuple[str | None, str]]:
        return [(None, data) for kind, data in self._inline() if kind == "application/pdf"]

    def _inline(self) -> list[tuple[str, str]]:
        # Google's library writes base64 for URLs.
        return [(one["mime_type"], one["data"].translate(_PLAIN)) for one in self._parts("inlineData")]

    @property
    @override
    def tool_results(self) -> dict[str, str]:
        """Every tool result in the conversation, as JSON, by its id, else by its name."""
        answers = self._parts("functionResponse")
        return {one.get("id") or one["name"]: json.dumps(one["response"]) for one in answers}

    def _parts(self, kind: str) -> list[Json]:
        parts = (part for content in self.body["contents"] for part in content["parts"])
        return [part[kind] for part in parts if kind in part]

    @property
    @override
    def bearer(self) -> str | None:
        return self.headers.get("x-goog-api-key") or super().bearer


_PLAIN = str.maketrans("-_", "+/")
_ROLES = {"user": "user", "model": "assistant"}


def _text(parts: list[Json]) -> str:
    return "".join(part.get("text", "") for part in parts)


@dataclass(frozen=True)
class Gemini:
    """The `Dialect`. Models differ in whether tool calls have ids, and come in one event or in one each."""

    has_ids: bool = True
    together: bool = False
    content_type: ClassVar[str] = "text/event-stream"
    request_class: ClassVar[type[LlmRequest]] = GeminiRequest
    kinds: ClassVar[frozenset[str]] = frozenset({"cached", "reasoning"})

    def is_turn(self, path: str) -> bool:
        return path.endswith((":streamGenerateContent", ":generateContent"))

    def opening(self, turn: Streamed, request: LlmRequest) -> bytes:
        del turn, request
        return b""

    def piece(self, text: str) -> bytes:
        return _event(_response([types.Part(text=text)]))

    def calls(self, turn: CallTools, request: LlmRequest) -> bytes:
        """The tool calls; each part holds one with all its arguments."""
        parts = self._calls(turn, request)
        groups = [parts] if self.together else [[part] for part in parts]
        return b"".join(_event(_response(group)) for group in groups)

    def ending(self, turn: Say | CallTools, request: LlmRequest) -> bytes:
        del request
        return _event(_response([types.Part(text="")], finish=_finish(turn), usage=turn.usage))

    def error(self, message: str) -> bytes:
        return f"data: {json.dumps(self.refusal(503, message))}\r\n\r\n".encode()

    def whole(self, turn: Say | CallTools, request: LlmRequest) -> Json:
        text = turn.text if isinstance(turn, CallTools) else "".join(turn.pieces)
        parts = [types.Part(text=text)] if text else []
        parts += self._calls(turn, request) if isinstance(turn, CallTools) else []
        return _dumped(_response(parts, finish=_finish(turn), usage=turn.usage))

    def refusal(self, status: int, message: str) -> Json:
        return {"error": {"code": status, "message": message, "status": _STATUSES.get(status, "UNKNOWN")}}

    def _calls(self, turn: CallTools, request: LlmRequest) -> list[types.Part]:
        thoughts = [types.Part(text=turn.thinking, thought=True)] if turn.thinking else []
        calls = [
            types.Part(
                function_call=types.FunctionCall(
                    id=call_id(request, index) if self.has_ids else None, name=name, args=json.loads(arguments)
                )
            )
            for index, (name, arguments) in enumerate(turn.calls)
        ]
        if turn.thinking:  # Gemini signs the first of several calls
            calls[0].thought_signature = signature_of(turn.thinking).encode()
        return [*thoughts, *calls]


_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


def _finish(turn: Say | CallTools) -> str:
    return "STOP" if isinstance(turn, CallTools) else _FINISH[turn.finish_reason]


def _response(
    parts: list[types.Part], *, finish: str | None = None, usage: Usage | None = None
) -> types.GenerateContentResponse:
    candidate = types.Candidate(
        content=types.Content(role="model", parts=parts),
        finish_reason=types.FinishReason(finish) if finish else None,
        index=0,
    )
    return types.GenerateContentResponse(
        candidates=[candidate],
        usage_metadata=_usage(usage) if usage else None,
        model_version="gemini-test",
        response_id="response-1",
    )


def _usage(usage: Usage) -> types.GenerateContentResponseUsageMetadata:
    return types.GenerateContentResponseUsageMetadata(
        prompt_token_count=usage.prompt,
        cached_content_token_count=usage.cached,
        candidates_token_count=usage.completion - (usage.reasoning or 0),
        thoughts_token_count=usage.reasoning,
        total_token_count=usage.prompt + usage.completion,
    )


def _event(response: types.GenerateContentResponse) -> bytes:
    return f"data: {json.dumps(_dumped(response))}\r\n\r\n".encode()


def _dumped(response: types.GenerateContentResponse) -> Json:
    return response.model_dump(mode="json", by_alias=True, exclude_none=True)
