"""Response bodies: models, a chat completion, and the chunks of a streamed one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.call import with_nested

if TYPE_CHECKING:
    from pallas_gateway.calls.call import Reply, Usage
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.doors.openai.errors import OpenAiError
    from pallas_gateway.doors.openai.requests import AgentRequest

type Json = dict[str, Any]

_CUT_SHORT = frozenset({"maxTokens", "maxIterations", "budget", "limited"})


def model(agent: HostedAgent, *, created: int, owner: str) -> Json:
    """Return an agent as a model. `name` and `description` are not keys of OpenAI; chat UIs show them."""
    title = agent.settings.shown_title(agent.name)
    shown = {"name": title, "description": agent.settings.description or title}
    return {"id": agent.name, "object": "model", "created": created, "owned_by": owner, **shown}


def finish_reason(reply: Reply) -> str:
    """Return the finish reason: `length` for an answer that a limit, a budget or the deadline has cut."""
    if reply.stop_reason in _CUT_SHORT or "deadline" in reply.halted:
        return "length"
    return "content_filter" if reply.stop_reason == "safety" else "stop"


def usage(used: Usage, asked: str = "prompt", answered: str = "completion") -> Json:
    """Return the tokens of all turns of the call; cache reads and writes are part of the prompt."""
    prompt = used.input + used.cache_read + used.cache_write
    return {
        f"{asked}_tokens": prompt,
        f"{answered}_tokens": used.output,
        "total_tokens": prompt + used.output,
        f"{asked}_tokens_details": {"cached_tokens": used.cache_read, "cache_write_tokens": used.cache_write},
        f"{answered}_tokens_details": {"reasoning_tokens": used.reasoning},
    }


def notes(reply: Reply, request: AgentRequest) -> Json:
    """Fields without effect or with another value, by the request's names; the reason of a partial answer."""
    names = request.names
    ignored = (*request.ignored, *(names.get(name, name) for name in reply.ignored))
    changed = {names.get(name, name): value for name, value in reply.changed.items()}
    params = replace(reply, ignored=ignored, changed=changed).parameter_notes
    told = {name: value for name, value in (("params", params), ("stopped", reply.stopped)) if value}
    told |= with_nested(reply.turns, reply.nested)
    return {"pallas": told} if told else {}


@dataclass(frozen=True, slots=True)
class Completion:
    """The bodies of a chat completion; `created` is in seconds of the epoch."""

    call_id: str
    model: str
    created: int
    request: AgentRequest

    def whole(self, text: str, reply: Reply) -> Json:
        """Return the body of an answer that is not streamed."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(reply)}
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": usage(reply.usage),
            **notes(reply, self.request),
        }

    def first(self) -> list[Json]:
        """Return the first chunk: the role."""
        return [self._chunk({"role": "assistant", "content": "", "refusal": None})]

    def more(self, text: str) -> Json:
        return self._chunk({"content": text})

    def last(self, reply: Reply) -> list[Json]:
        """Return the last chunks: the finish reason, and the usage if it was requested."""
        ended = {**self._chunk({}, finish_reason(reply)), **notes(reply, self.request)}
        if not self.request.include_usage:
            return [ended]
        return [ended, {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(reply.usage)}]

    def failed(self, error: OpenAiError) -> list[Json]:
        """Return what ends a stream that has begun without an answer."""
        return [error.body()]

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.request.include_usage else chunk

    def _head(self, kind: str) -> Json:
        return {"id": f"chatcmpl-{self.call_id}", "object": kind, "created": self.created, "model": self.model}
