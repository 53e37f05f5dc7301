"""A scripted model to try the gateway without a key or a network.

`decide` holds the rules:

- For orders, sentences that begin with a tool's name such as `Book a room.`: call these tools, one after the other.
- With tool results: answer with their texts, and name the servers that were searched.
- For questions, and sentences such as `Tell me about …`: call a tool for each, all at once: `now` for the time,
  `search` for other questions, else the `send_message` of a peer.
- Otherwise: a friendly sentence.

As in fast-agent's `passthrough`, `***CALL_TOOL name {json}` calls that tool.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import override
from uuid import uuid4

from fast_agent.llm.internal.passthrough import PassthroughLLM
from fast_agent.llm.model_database import ModelDatabase, ModelParameters
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider
from fast_agent.llm.stream_types import StreamChunk
from fast_agent.llm.usage_tracking import CompletionTokenUsage, PromptTokenUsage, TurnUsage, UsageSchema
from fast_agent.mcp.helpers.content_helpers import tool_result_text_for_llm
from fast_agent.mcp.prompt import Prompt
from fast_agent.types import LlmStopReason, PromptMessageExtended, RequestParams
from mcp_types import CallToolRequest, CallToolRequestParams, ImageContent, Tool

NAME = "pallas-demo"
SPEC = f"fast-agent.{NAME}"
MOST_TOOL_USES = 4  # in one turn, however many questions a message asks
CHARACTERS_PER_TOKEN = 4  # a rule of thumb for English

_SENTENCE = re.compile(
    r"[^.?!\n]+(?:[.?!](?!\s|$)[^.?!\n]*)*[.?!]*"
)  # a point inside a word, as in `0.10`, ends no sentence
_SMALL_TALK = re.compile(r"\s*(?:hi|hello|hey|thanks|thank you|good \w+|bye|how are you)\b[\s,!.?\w]{0,20}$", re.I)
_ASKING = re.compile(
    r"\s*(?:(?:and|also|please)\s+)*(?:what|who|why|how|when|where|which|can|could|does|do|is|are|tell me|explain"
    r"|compare|describe|find|look up|search|research)\b|.*\?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_ASKED = ("__search", "__now", "__send_message")  # tools that questions are for
_SUBJECT = re.compile(r"^[^:.]{1,40}: ")
_ABOUT_TIME = re.compile(r"\b(?:what|which|current|today's) (?:time|date|day)\b|\btime is it\b|\btoday\b", re.I)


@dataclass(frozen=True)
class ToolOutput:
    """The result of one tool call of this turn."""

    tool: str
    text: str
    is_error: bool = False


@dataclass(frozen=True)
class Situation:
    """The input of a decision.

    Attributes:
        message: The user's latest message.
        turn: Its number in the conversation, from 1.
        images: The number of its images.
        tools: Names of the available tools, as `server__tool`.
        outputs: Results of the tools that were called for this message, in the order of the calls.
    """

    message: str
    turn: int = 1
    images: int = 0
    tools: tuple[str, ...] = ()
    outputs: tuple[ToolOutput, ...] = ()


@dataclass(frozen=True)
class ToolUse:
    """A tool to call."""

    tool: str
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The model's text and tool calls; without tool calls the text is the answer."""

    text: str
    uses: tuple[ToolUse, ...] = ()


def decide(situation: Situation) -> Decision:
    """The next step by the rules at the top."""
    orders = _orders(situation)
    if len(situation.outputs) < len(orders):
        order = orders[len(situation.outputs)]
        return Decision(f"Let me ask {_server(order.tool)}.", (order,))
    if situation.outputs:
        return _answer(_report(situation.outputs), situation)
    questions = _questions(situation.message)
    uses = [use for question in questions if (use := _tool_for(question, situation.tools))]
    if uses:
        chosen = tuple(uses[:MOST_TOOL_USES])
        servers = " and ".join(dict.fromkeys(_server(use.tool) for use in chosen))
        return Decision(f"Let me ask {servers}.", chosen)
    if questions:
        return _answer("I have no tool to look that up; get_health shows whether one is missing.", situation)
    return _answer(_small_talk(situation.images), situation)


def _orders(situation: Situation) -> list[ToolUse]:
    by_name = {tool.rpartition("__")[2]: tool for tool in situation.tools if not tool.endswith(_ASKED)}
    verbs = [words[0].lower() for sentence in _SENTENCE.findall(situation.message) if (words := sentence.split())]
    return [ToolUse(by_name[verb]) for verb in verbs if verb in by_name]


def _questions(message: str) -> list[str]:
    sentences = [sentence.strip() for sentence in _SENTENCE.findall(message)]
    return [sentence for sentence in sentences if _ASKING.match(sentence) and not _SMALL_TALK.match(sentence)]


def _tool_for(question: str, tools: Sequence[str]) -> ToolUse | None:
    by_name = {tool.rpartition("__")[2]: tool for tool in reversed(tools)}  # the first server's, if two have one
    if "now" in by_name and _ABOUT_TIME.search(question):
        return ToolUse(by_name["now"])
    if "search" in by_name:
        return ToolUse(by_name["search"], {"query": question})
    if "send_message" in by_name:
        return ToolUse(by_name["send_message"], {"message": question})
    return None


def _report(outputs: Sequence[ToolOutput]) -> str:
    parts = [_said(output) for output in outputs]
    searched = dict.fromkeys(_server(one.tool) for one in outputs if one.tool.endswith("__search") and not one.is_error)
    if searched:
        parts.append(f"Source: {', '.join(searched)}.")
    return "\n\n".join(parts)


def _said(output: ToolOutput) -> str:
    if output.is_error:
        return f"I got no answer from {_server(output.tool)}: {output.text}"
    if output.tool.endswith("__search"):  # notes, each a line with its subject before it
        return "\n\n".join(_SUBJECT.sub("", note) for note in output.text.splitlines())
    return f"It is {output.text}." if output.tool.endswith("__now") else output.text


def _small_talk(images: int) -> str:
    if images:
        pictures = "an image" if images == 1 else f"{images} images"
        return f"Thank you for {pictures}! I am too small a model to see what is in there."
    return "Hello! I am a scripted demo model. Ask me something, such as: What is a peer?"


def _answer(text: str, situation: Situation) -> Decision:
    # Only a client that sends a history has a second turn.
    return Decision(f"{text} This is turn {situation.turn} of our conversation." if situation.turn > 1 else text)


def _server(tool: str) -> str:
    return tool.rpartition("__")[0] or tool


def register() -> None:
    """Register `SPEC` with fast-agent; may be called again."""
    ModelFactory.MODEL_SPECIFIC_CLASSES[NAME] = DemoLLM
    parameters = ModelParameters(
        context_window=32_768,
        max_output_tokens=2_048,
        tokenizes=["text/plain", "image/jpeg", "image/png", "image/webp"],
        default_provider=Provider.FAST_AGENT,
    )
    ModelDatabase.register_runtime_model_params(NAME, parameters)


class DemoLLM(PassthroughLLM):
    """A model of fast-agent that runs `decide`."""

    @override
    async def _apply_prompt_provider_specific(
        self,
        multipart_messages: list[PromptMessageExtended],
        request_params: RequestParams | None = None,
        tools: list[Tool] | None = None,
        is_template: bool = False,
    ) -> PromptMessageExtended:
        latest = multipart_messages[-1]
        if latest.role == "assistant" or is_template:
            return latest
        if self.is_tool_call(latest):
            name, arguments = self._parse_tool_command(latest.first_text())
            decision = Decision("", (ToolUse(name, arguments or {}),))
        else:
            decision = decide(situation_of(multipart_messages, tools or []))
        self._stream(decision.text)
        self._count_tokens(multipart_messages, decision)
        return _as_message(decision)

    def _stream(self, text: str) -> None:
        for word in re.findall(r"\S+\s*", text):
            self._notify_stream_listeners(StreamChunk(word))

    def _count_tokens(self, messages: Sequence[PromptMessageExtended], decision: Decision) -> None:
        """Report the tokens of the texts, as an estimate, with the prompt of the previous turn as read from a cache."""
        total = _tokens("".join(message.all_text() for message in messages))
        turns = self.usage_accumulator.turns
        cached = min(total, turns[-1].prompt.total or 0) if turns else 0
        usage = TurnUsage(
            provider=Provider.FAST_AGENT,
            usage_schema=UsageSchema.OPENAI_CHAT,  # fast-agent has none for models of its own
            model=NAME,
            prompt=PromptTokenUsage(total=total, uncached=total - cached, cache_read=cached, cache_write=0),
            completion=CompletionTokenUsage(total=_tokens(decision.text + str(decision.uses or "")), reasoning=0),
        )
        self.usage_accumulator.add_turn(usage)


def situation_of(messages: Sequence[PromptMessageExtended], tools: Sequence[Tool]) -> Situation:
    """The conversation, history included, as the input of `decide`."""
    asked = [at for at, message in enumerate(messages) if message.role == "user" and not message.tool_results]
    since = asked[-1] if asked else len(messages) - 1
    question = messages[since]
    called = {call_id: call.params.name for message in messages for call_id, call in (message.tool_calls or {}).items()}
    results = [result for message in messages[since:] for result in (message.tool_results or {}).items()]
    return Situation(
        message=question.all_text(),
        turn=max(1, len(asked)),
        images=sum(isinstance(block, ImageContent) for block in question.content),
        tools=tuple(tool.name for tool in tools),
        outputs=tuple(
            ToolOutput(called.get(call_id, "a tool"), tool_result_text_for_llm(result), result.is_error)
            for call_id, result in results
        ),
    )


def _as_message(decision: Decision) -> PromptMessageExtended:
    calls = {
        # Unlike passthrough's counter, ids are unique over all agents, which distinguishes nested calls.
        f"call_{uuid4().hex[:12]}": CallToolRequest(
            method="tools/call", params=CallToolRequestParams(name=use.tool, arguments=use.arguments)
        )
        for use in decision.uses
    }
    stop_reason = LlmStopReason.TOOL_USE if calls else LlmStopReason.END_TURN
    return Prompt.assistant(decision.text, tool_calls=calls, stop_reason=stop_reason)


def _tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)
