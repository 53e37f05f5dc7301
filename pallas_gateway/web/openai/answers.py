"""Response bodies: models, a completion, and the chunks of a streamed completion. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pallas_gateway.calls.call import Reply, Usage
    from pallas_gateway.hosting.hosted_agent import HostedAgent

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


def usage(used: Usage) -> Json:
    """Return the tokens of all turns of the call; cache reads and writes are part of the prompt."""
    prompt = used.input + used.cache_read + used.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": used.output,
        "total_tokens": prompt + used.output,
        "prompt_tokens_details": {"cached_tokens": used.cache_read, "cache_write_tokens": used.cache_write},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning},
    }


@dataclass(frozen=True, slots=True)
class Answers:
    """The bodies of one request's response.

    `created` is in seconds of the epoch; `ignored` are fields of the request that have no effect.
    """

    call_id: str
    model: str
    created: int
    with_usage: bool = False
    ignored: tuple[str, ...] = ()

    def completion(self, text: str, reply: Reply) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(reply)}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(reply.usage), **self._notes(reply)}

    def first(self) -> Json:
        """Return the first chunk: the role."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def more(self, text: str) -> Json:
        return self._chunk({"content": text})

    def last(self, reply: Reply) -> list[Json]:
        """Return the last chunks: the finish reason, and the usage if it was requested."""
        ended = {**self._chunk({}, finish_reason(reply)), **self._notes(reply)}
        if not self.with_usage:
            return [ended]
        return [ended, {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(reply.usage)}]

    def _notes(self, reply: Reply) -> Json:
        """Fields without effect or with another value, as `_meta["pallas/params"]`; the reason of a partial answer."""
        params = replace(reply, ignored=(*self.ignored, *reply.ignored)).parameter_notes
        told = {name: value for name, value in (("params", params), ("stopped", reply.stopped)) if value}
        return {"pallas": told} if told else {}

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.with_usage else chunk

    def _head(self, kind: str) -> Json:
        return {"id": f"chatcmpl-{self.call_id}", "object": kind, "created": self.created, "model": self.model}
