"""The scripted model's rules, and that fast-agent runs it as a model like any other."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from fast_agent.interfaces import AgentProtocol
from fast_agent.llm.model_database import ModelDatabase
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.stream_types import StreamChunk
from fast_agent.mcp.prompt import Prompt
from fast_agent.types import LlmStopReason, PromptMessageExtended
from mcp_types import CallToolResult, TextContent, Tool

from pallas_gateway.example import demo_model, models
from pallas_gateway.example.demo_model import Decision, DemoLLM, Situation, ToolOutput, ToolUse, decide

LIBRARY = ("library__search", "library__now")
PEER = ("research__send_message",)
BOOKINGS = ("bookings__book", "bookings__cancel")
BOOKED = (ToolOutput("bookings__book", "Booked."),)
HELLO = "Hello! I am a scripted demo model. Ask me something, such as: What is a peer?"

DECISIONS: list[tuple[str, Situation, Decision]] = [
    ("a greeting gets one back", Situation("Hello!", tools=PEER), Decision(HELLO)),
    ("small talk is no question", Situation("Hi, how are you?", tools=PEER), Decision(HELLO)),
    (
        "a question goes to the peer",
        Situation("What is a peer?", tools=PEER),
        Decision("Let me ask research.", (ToolUse("research__send_message", {"message": "What is a peer?"}),)),
    ),
    (
        "a question goes to search where there is one",
        Situation("Tell me about fast-agent 0.10.46.", tools=(*PEER, *LIBRARY)),
        Decision("Let me ask library.", (ToolUse("library__search", {"query": "Tell me about fast-agent 0.10.46."}),)),
    ),
    (
        "the time comes from now",
        Situation("what time is it", tools=LIBRARY),
        Decision("Let me ask library.", (ToolUse("library__now"),)),
    ),
    (
        "a greeting before a question does not hide it",
        Situation("Hello! What is MCP?", tools=LIBRARY),
        Decision("Let me ask library.", (ToolUse("library__search", {"query": "What is MCP?"}),)),
    ),
    (
        "several questions are asked at once",
        Situation("What is MCP? And explain peers. Thanks!", tools=PEER),
        Decision(
            "Let me ask research.",
            (
                ToolUse("research__send_message", {"message": "What is MCP?"}),
                ToolUse("research__send_message", {"message": "And explain peers."}),
            ),
        ),
    ),
    (
        "a question without a tool is owned up to",
        Situation("What is MCP?"),
        Decision("I have no tool to look that up; get_health shows whether one is missing."),
    ),
    (
        "a result is the answer, with its source",
        Situation("What is MCP?", tools=LIBRARY, outputs=(ToolOutput("library__search", "MCP: A protocol."),)),
        Decision("A protocol.\n\nSource: library."),
    ),
    (
        "the time is told in a sentence",
        Situation("What time is it?", tools=LIBRARY, outputs=(ToolOutput("library__now", "Friday, 15:04 UTC"),)),
        Decision("It is Friday, 15:04 UTC."),
    ),
    (
        "every result is in the answer, failures as such",
        Situation(
            "What is MCP? Who are you?",
            outputs=(ToolOutput("research__send_message", "A."), ToolOutput("library__now", "Gone.", is_error=True)),
        ),
        Decision("A.\n\nI got no answer from library: Gone."),
    ),
    (
        "the first of several orders is carried out first",
        Situation("Good morning. Book a room. Cancel the old bookings!", tools=BOOKINGS),
        Decision("Let me ask bookings.", (ToolUse("bookings__book"),)),
    ),
    (
        "then the next one",
        Situation("Book a room. Cancel the old bookings!", tools=BOOKINGS, outputs=BOOKED),
        Decision("Let me ask bookings.", (ToolUse("bookings__cancel"),)),
    ),
    (
        "in the end the answer has the results of all",
        Situation("Book a room. Cancel the old bookings!", tools=BOOKINGS, outputs=BOOKED + BOOKED),
        Decision("Booked.\n\nBooked."),
    ),
    (
        "tools for questions take no orders",
        Situation("Search it.", tools=LIBRARY),
        Decision("Let me ask library.", (ToolUse("library__search", {"query": "Search it."}),)),
    ),
    ("later turns are counted", Situation("Nice.", turn=3), Decision(f"{HELLO} This is turn 3 of our conversation.")),
    (
        "images are noticed",
        Situation("Look!", images=2),
        Decision("Thank you for 2 images! I am too small a model to see what is in there."),
    ),
]


@pytest.mark.parametrize(
    ("situation", "decision"),
    [pytest.param(situation, decision, id=name) for name, situation, decision in DECISIONS],
)
def test_decides_by_its_rules(situation: Situation, decision: Decision) -> None:
    assert decide(situation) == decision


def test_never_calls_more_than_four_tools_at_once() -> None:
    assert len(decide(Situation("What is MCP? " * 9, tools=LIBRARY)).uses) == demo_model.MOST_TOOL_USES


type MakeLLM = Callable[[], DemoLLM]


@pytest.fixture
def make_llm() -> MakeLLM:
    demo_model.register()
    factory = ModelFactory.create_factory(demo_model.SPEC)

    def make() -> DemoLLM:
        agent = cast("AgentProtocol", SimpleNamespace(name="tester", instruction="Test."))
        llm = factory(agent)
        assert isinstance(llm, DemoLLM)
        return llm

    return make


TOOLS = [Tool(name=name, input_schema={"type": "object"}) for name in LIBRARY]


async def test_calls_a_tool_then_answers_from_its_result_and_reports_tokens_of_both_turns(make_llm: MakeLLM) -> None:
    llm = make_llm()
    question = Prompt.user("What is MCP?")
    asked = await llm.generate([question], tools=TOOLS)
    assert asked.stop_reason == LlmStopReason.TOOL_USE
    ((call_id, call),) = (asked.tool_calls or {}).items()
    assert (call.params.name, call.params.arguments) == ("library__search", {"query": "What is MCP?"})

    result = CallToolResult(content=[TextContent(type="text", text="A protocol.")])
    results = PromptMessageExtended(role="user", content=[], tool_results={call_id: result})
    answered = await llm.generate([question, asked, results], tools=TOOLS)
    assert answered.stop_reason == LlmStopReason.END_TURN
    assert answered.last_text() == "A protocol.\n\nSource: library."

    first, second = llm.usage_accumulator.turns
    assert first.model == second.model == "pallas-demo"
    assert (first.prompt.total or 0) > 0
    assert (first.completion.total or 0) > 0
    assert second.prompt.cache_read == first.prompt.total
    assert (second.prompt.uncached or 0) + (second.prompt.cache_read or 0) == second.prompt.total


async def test_counts_the_turns_of_the_history_it_is_given(make_llm: MakeLLM) -> None:
    history = [Prompt.user("Hello!"), Prompt.assistant("Hello."), Prompt.user("Nice."), Prompt.assistant("Yes.")]
    answer = await make_llm().generate([*history, Prompt.user("Thanks!")])
    assert answer.all_text().endswith("This is turn 3 of our conversation.")


async def test_streams_exactly_its_answer(make_llm: MakeLLM) -> None:
    llm = make_llm()
    pieces: list[StreamChunk] = []
    llm.add_stream_listener(pieces.append)
    answer = await llm.generate([Prompt.user("Hello!")])
    assert "".join(piece.text for piece in pieces) == answer.last_text()
    assert len(pieces) > 1


async def test_calls_the_tool_it_is_told_to_like_passthrough(make_llm: MakeLLM) -> None:
    answer = await make_llm().generate([Prompt.user('***CALL_TOOL library__search {"query": "x"}')], tools=TOOLS)
    (call,) = (answer.tool_calls or {}).values()
    assert (call.params.name, call.params.arguments) == ("library__search", {"query": "x"})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "fast-agent.pallas-demo"),
        ({"ANTHROPIC_API_KEY": " ", "OPENAI_API_KEY": ""}, "fast-agent.pallas-demo"),
        ({"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}, models.PROVIDER_MODELS["ANTHROPIC_API_KEY"]),
        ({"OPENAI_API_KEY": "k"}, models.PROVIDER_MODELS["OPENAI_API_KEY"]),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://local/v1"}, models.COMPATIBLE_MODEL),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": " "}, models.PROVIDER_MODELS["OPENAI_API_KEY"]),
        ({"OPENAI_BASE_URL": "http://local/v1"}, "fast-agent.pallas-demo"),
        (
            {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://local/v1"},
            models.PROVIDER_MODELS["ANTHROPIC_API_KEY"],
        ),
        ({"OPENAI_API_KEY": "k", "PALLAS_EXAMPLE_MODEL": "pallas-demo"}, "pallas-demo"),
    ],
)
def test_the_model_follows_from_the_environment(environ: dict[str, str], expected: str) -> None:
    assert models.example_model(environ) == expected


@pytest.mark.parametrize("spec", [demo_model.SPEC, models.COMPATIBLE_MODEL, *models.PROVIDER_MODELS.values()])
def test_fast_agent_knows_every_model_the_example_may_choose(spec: str) -> None:
    demo_model.register()
    resolved = ModelFactory.resolve_model_spec(spec)
    assert resolved.model_params is not None
    assert ModelDatabase.supports_mime(resolved.wire_model_name, "image/png")
