"""The bodies, queries and answers of threads. `answers.py` makes the answers."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator

from pallas_gateway.doors.api.models import DIGITS, SCHEMAS, Count, Key, Model, Query, Switch, Text, Time
from pallas_gateway.limits import QuestionLimits

LAST_TURN = 2**31 - 1
_MOST_ANSWERS = QuestionLimits().at_once
THREAD_ID = re.compile(r"[0-9a-f]{32}")
CURSOR = re.compile(r"[0-9]{1,15}\.[0-9a-f]{32}(\.[0-9]{1,9})?")
"""Start of a page of threads: `{milliseconds}.{id}` of the last thread of the page before, of a search with a turn."""


def _thread_id(value: str) -> str:
    if not THREAD_ID.fullmatch(value):
        raise ValueError("must be the id of a thread, 32 hexadecimal digits")
    return value


def _cursor(value: str) -> str:
    if not CURSOR.fullmatch(value):
        raise ValueError("must be the `nextCursor` of a page before")
    return value


type ThreadId = Annotated[
    str, AfterValidator(_thread_id), Field(json_schema_extra={"pattern": f"^{THREAD_ID.pattern}$"})
]
type TurnIndex = Annotated[int, Field(ge=1, le=LAST_TURN, description="Counts the turns of a thread, without gaps.")]
Title = Annotated[Text, Field(max_length=200)]


class ThreadsQuery(Query):
    """The query of a list of threads."""

    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = 50
    """Entries of one page."""
    cursor: (
        Annotated[str, AfterValidator(_cursor), Field(json_schema_extra={"pattern": f"^{CURSOR.pattern}$"})] | None
    ) = None
    """`nextCursor` of the page before."""
    search: Annotated[Text | None, Field(max_length=200)] = None
    """A part of a title, a message or an answer. A page may then have fewer threads although others follow."""
    rated: Switch = False
    """Only threads with a rated answer."""


class MessagesQuery(Query):
    """The query of the messages of a thread."""

    limit: Annotated[int, Field(ge=1, le=200), DIGITS] = 50
    """Turns of one page, which has fewer if they are large."""
    after: Annotated[int, Field(ge=0, le=LAST_TURN), DIGITS] = 0
    """`nextAfter` of the page before."""
    tools: Switch = False
    """With the tool calls of each turn and their results."""


class NewThread(Model):
    """A new thread, or another title of one."""

    title: Title | None = None


class Fork(Model):
    """The part of a thread that is copied."""

    turns: Annotated[int, Field(ge=0, le=LAST_TURN)] = LAST_TURN
    """Number of the last turn that is copied; all without it."""


class NewFeedback(Model):
    """A rating."""

    rating: Literal["good", "bad"]
    note: Annotated[Text, Field(max_length=4000)] = ""
    for_owner: Annotated[bool, Field(alias="forOwner")] = False
    """The owner of the agent may read the note, the message and the answer."""


class _Switches(Model):
    background: bool = False
    """The call goes on when its client disconnects."""
    assistant_stream: Annotated[bool, Field(alias="assistantStream")] = False
    """Events `assistant` in place of `text`, `tool_call` and `tool_result`."""


class Said(Model):
    """A message to an agent. Images and `params` are checked for the agent that is called."""

    message: Text
    """The new user turn."""
    images: Annotated[
        Any,
        WithJsonSchema(
            {
                "anyOf": [{"type": "array", "items": {"$ref": f"{SCHEMAS}SentImage"}}, {"type": "null"}],
                "description": "For agents whose model takes them.",
            }
        ),
    ] = None
    params: Annotated[Any, WithJsonSchema({"anyOf": [{"$ref": f"{SCHEMAS}Params"}, {"type": "null"}]})] = None
    messages: Any = None
    """An array of `{role, content, images}`, as in the stored history, whose place it takes for this call. Entries
    that are no such messages are left out, so any value is accepted.
    """


class ChatRequest(Said, _Switches):
    """A message to an agent, in a thread."""

    thread_id: Annotated[ThreadId | None, Field(alias="threadId")] = None
    """Without one, a new thread begins."""
    replaces: TurnIndex | None = None
    """The latest turn of the thread, or one whose place it has taken: the new turn takes their place. Requires a
    `threadId`.
    """

    @field_validator("replaces")
    @classmethod
    def _is_in_a_thread(cls, replaces: int | None, info: ValidationInfo) -> int | None:
        if replaces is not None and "thread_id" in info.data and info.data["thread_id"] is None:
            raise ValueError("takes a 'threadId': the thread of that turn")
        return replaces


def _few(given: Any) -> Any:
    """Refuse a great many answers before each is looked at."""
    if isinstance(given, dict) and len(given) > _MOST_ANSWERS:
        raise ValueError(f"must have at most {_MOST_ANSWERS} entries")
    return given


class GivenAnswer(Model):
    """An answer to one question."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None
    """The form, if it is accepted."""


class GivenAnswers(_Switches):
    """Answers to questions."""

    answers: Annotated[dict[Key, GivenAnswer], Field(max_length=_MOST_ANSWERS), BeforeValidator(_few)]
    """Answers by the ids of their questions; none to go on with the turn."""


class Thread(TypedDict):
    """A conversation of one caller with one agent."""

    id: ThreadId
    agent: str
    agentId: NotRequired[str]
    """Of an agent of the database. Another agent of its name lacks this thread."""
    title: str | None
    createdAt: Time
    updatedAt: Time
    turns: Count
    """The number of its latest turn."""


class Threads(TypedDict):
    """One page of threads."""

    threads: list[Thread]
    nextCursor: str | None


class Image(TypedDict):
    """An image or a PDF."""

    data: Annotated[
        str, Field(min_length=4, pattern="^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$")
    ]
    """Base64."""
    mime_type: Annotated[str, Field(pattern="^(image/[a-z0-9.+-]{1,60}|application/pdf)$")]
    name: NotRequired[
        Annotated[str, Field(max_length=200, json_schema_extra={"pattern": "^[^\\u0000-\\u001f\\u007f]*$"})]
    ]
    """Of a PDF's file."""


type Usage = Annotated[
    dict[str, int | Literal[True]],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {"estimated": {"const": True, "description": "The provider sent no usage for a part of it."}},
            "additionalProperties": {"type": "integer"},
            "description": "Tokens by kind.",
        }
    ),
]


class Feedback(TypedDict):
    """The rating of an answer by the owner of its thread."""

    rating: Literal["good", "bad"]
    note: str
    ratedAt: Time
    forOwner: NotRequired[Literal[True]]
    """The owner of the agent may read the note, the message and the answer."""


class Question(TypedDict):
    """A question of the agent to its caller."""

    id: Annotated[str, Field(description="Names the question in an answer.")]
    agent: Annotated[str, Field(description="The agent in whose work the question arose.")]
    callPath: Annotated[
        list[str],
        Field(
            description="Ids of the tool calls that lead to that agent, the innermost first; empty for the called one."
        ),
    ]
    kind: Literal["form", "url", "approval", "human_input"]
    mode: Literal["form", "url"]
    message: Annotated[str, Field(description="Begins with the name of the server or agent that asks.")]
    server: NotRequired[Annotated[str, Field(description="The downstream that asks.")]]
    tool: NotRequired[Annotated[str, Field(description="The tool under approval, as `server/tool`.")]]
    schema: NotRequired[
        Annotated[dict[str, Any], Field(description="JSON Schema of the form to fill in; only with mode `form`.")]
    ]
    url: NotRequired[Annotated[str, Field(description="The page to open; only with mode `url`.")]]


class TurnError(TypedDict):
    """Why a turn has no answer."""

    reason: str
    message: str | None


class AskedTool(TypedDict):
    """A tool call that the model asks for."""

    id: str
    toolName: str
    args: dict[str, Any]


class Message(TypedDict):
    """A message of a turn, from the user, the assistant or a tool."""

    turnIndex: TurnIndex
    role: Literal["user", "assistant", "tool"]
    status: Literal["pending", "asking", "complete", "error"]
    createdAt: Time | None
    content: str | None
    """null if there is no answer, or not yet."""
    images: list[Image]
    callId: NotRequired[str]
    stopReason: NotRequired[str | None]
    usage: NotRequired[Usage | None]
    params: NotRequired[dict[str, Any]]
    """Of a message: the parameters of its call, once that has ended."""
    model: NotRequired[str]
    """Of an answer: the model of its latest LLM turn."""
    replaces: NotRequired[Annotated[int, Field(ge=1)]]
    """Of a message: the first of the turns whose place its turn takes."""
    feedback: NotRequired[Feedback]
    error: NotRequired[TurnError | None]
    questions: NotRequired[list[Question]]
    """The open ones of a turn that is `asking`."""
    toolCalls: NotRequired[list[AskedTool]]
    """What the assistant asks tools for, before its answer."""
    toolCallId: NotRequired[str]
    """Of a `tool`: the call that it answers."""
    toolName: NotRequired[str]
    """Of a `tool`: `server/tool`."""
    ok: NotRequired[bool]
    """Of a `tool`: it has not failed."""


class Messages(TypedDict):
    """One page of turns."""

    messages: list[Message]
    nextAfter: int | None


class Outcome(TypedDict):
    """The answer of an agent, or its questions."""

    content: Annotated[str, Field(description="The text of the answer.")]
    images: list[Image]
    stopReason: str
    stopped: NotRequired[
        Annotated[
            Literal["deadline", "repeat", "oscillation", "max_iterations", "budget", "limited"],
            Field(description="Why the answer is partial."),
        ]
    ]
    usage: Usage
    usageWithNested: NotRequired[Annotated[Usage, Field(description="With that of the agents that it has called.")]]
    costWithNested: NotRequired[float]
    callId: Annotated[str, Field(description="The call in the gateway's log.")]
    params: NotRequired[
        Annotated[dict[str, Any], Field(description="Parameters that were `ignored`, or `changed` and to what.")]
    ]
    traceUrl: NotRequired[Annotated[str, Field(description="The page of the call's trace, with `gateway.trace_url`.")]]
    historyLeftOut: NotRequired[Annotated[int, Field(ge=1, description="Oldest turns that the model was not sent.")]]
    questions: NotRequired[
        Annotated[list[Question], Field(description="With the stopReason `input_needed`: what the agent asks.")]
    ]


class Answer(Outcome):
    """The answer in a turn of a thread."""

    threadId: ThreadId
    turnIndex: TurnIndex


class ThreadEvent(TypedDict):
    """The turn of the stream; its first event. That of a try is `try`, with its `tryId`."""

    type: Literal["thread"]
    threadId: ThreadId
    turnIndex: TurnIndex


class TextEvent(TypedDict):
    """The next piece of the answer."""

    type: Literal["text"]
    delta: str


class ToolCallEvent(AskedTool):
    """A tool call begins."""

    type: Literal["tool_call"]


class ToolResultEvent(TypedDict):
    """A tool call has ended."""

    type: Literal["tool_result"]
    id: str
    toolName: str
    ok: bool


class AssistantEvent(TypedDict):
    """An event of the assistant stream, as MCP clients receive it."""

    type: Literal["assistant"]
    data: dict[str, Any]


class QuestionEvent(Question):
    """The agent asks."""

    type: Literal["question"]


class AnswerEvent(TypedDict):
    """A question is answered."""

    type: Literal["answer"]
    id: str
    action: Literal["accept", "decline", "cancel"]


class FinalEvent(Answer):
    """The whole answer."""

    type: Literal["final"]


class ErrorEvent(TypedDict):
    """The call has failed."""

    type: Literal["error"]
    message: str
    reason: str
    threadId: NotRequired[ThreadId]
    turnIndex: NotRequired[TurnIndex]


type Event = Annotated[
    ThreadEvent
    | TextEvent
    | ToolCallEvent
    | ToolResultEvent
    | AssistantEvent
    | QuestionEvent
    | AnswerEvent
    | FinalEvent
    | ErrorEvent,
    Field(
        discriminator="type",
        description="The data of one server-sent event; after the last one comes `[DONE]`. A client that reads slowly "
        "may miss `text`, `tool_call`, `tool_result` and `assistant`; `final` has the whole answer.",
    ),
]


class TryRequest(Said):
    """A definition, and a message to the agent that it makes; `messages` are what was said before."""

    definition: dict[str, Any]
    """Of the whole agent, as it would be saved; a new one may have a `name`."""
    assistant_stream: Annotated[bool, Field(alias="assistantStream")] = False
    """Events `assistant` in place of `text`, `tool_call` and `tool_result`."""
