"""What stands on the screen: the answer once, whatever order it comes in, and nothing a terminal would obey."""

import io
import sys
from typing import Any, override

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.call_settings import offered_by, value_of
from pallas_gateway.client.chat.chat_commands import path_and_text, read
from pallas_gateway.client.chat.repl import Choices
from pallas_gateway.client.chat.screen import LineBreaks, Screen


class Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        """All that was written, but for whether it is dim."""
        return self.getvalue().replace("\x1b[2m", "").replace("\x1b[0m", "")


def screen_at_terminal(monkeypatch: pytest.MonkeyPatch) -> tuple[Screen, Terminal]:
    """A screen that shows stdout and stderr on one terminal, as people have it."""
    terminal = Terminal()
    for name, value in {"TERM": "xterm", "COLUMNS": "60", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    return Screen(), terminal


def delta(text: str, iteration: int = 1, agent: str = "echo") -> dict[str, Any]:
    return {"kind": "assistant_delta", "agent": agent, "iteration": iteration, "text": text}


def chunk(text: str, *tools: str, iteration: int = 1, **more: object) -> dict[str, Any]:
    calls: list[dict[str, Any]] = [{"id": name, "server": None, "name": name, "arguments": {}} for name in tools]
    return {
        "kind": "assistant_chunk",
        "agent": "echo",
        "iteration": iteration,
        "text": text,
        "tool_calls": calls,
        **more,
    }


@pytest.mark.parametrize(
    ("payloads", "answer", "shown"),
    [
        pytest.param([], "Hi.", "Hi.\n", id="no live text"),
        pytest.param([delta("H"), delta("i."), chunk("Hi.")], "Hi.", "Hi.\n", id="live"),
        pytest.param([chunk("Hi.")], "Hi.", "Hi.\n", id="a chunk alone"),
        pytest.param([delta("Hi")], "Hi.", "Hi.\n", id="the end is missing"),
        pytest.param([delta("i.")], "Hi.", "i.\nHi.\n", id="the beginning is missing"),
        pytest.param([delta("Hi.\n"), chunk("Hi.\n")], "Hi.\n", "Hi.\n", id="ends with a newline"),
        pytest.param([delta("Hi."), chunk("Hi.")], "Hi.\n\nStopped.", "Hi.\n\n\nStopped.\n", id="something is added"),
        pytest.param(
            [delta("I look."), chunk("I look.", "find"), delta("Found.", 2), chunk("Found.", iteration=2)],
            "Found.",
            "I look.\necho → find {}\nFound.\n",
            id="with a tool",
        ),
        pytest.param(
            [delta("one", agent="a"), delta("two", agent="b")], "two", "one\ntwo\n", id="inner agents one by one"
        ),
        pytest.param(
            [chunk("", "ask"), chunk("Sub.", via_agent=["peer"]), chunk("Hi.", iteration=2)],
            "Hi.",
            "echo → ask {}\n  echo: Sub.\nHi.\n",
            id="a sub-agent",
        ),
        pytest.param([delta("a\x1b[2Jb\x07\r\nc")], "a\x1b[2Jb\x07\r\nc", "a[2Jb\nc\n", id="escapes"),
    ],
)
def test_the_answer_stands_there_once(
    monkeypatch: pytest.MonkeyPatch, payloads: list[dict[str, Any]], answer: str, shown: str
) -> None:
    screen, terminal = screen_at_terminal(monkeypatch)
    for payload in payloads:
        screen.payload(payload)
    screen.finish(answer)
    assert terminal.shown == shown


def test_progress_is_a_line_that_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, terminal = screen_at_terminal(monkeypatch)
    screen.progress(1, None, "echo step 1 (llm)")
    screen.payload(delta("Hi"))
    screen.progress(1, None, "no place for this")
    screen.finish("Hi.")
    screen.progress(1, None, "x" * 100)
    screen.end_line()
    clear = "\r\x1b[2K"
    assert terminal.shown == (f"echo step 1 (llm){clear}Hi.\n{'x' * 58}…{clear}")


def test_into_a_pipe_goes_the_finished_answer_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    for payload in (delta("I"), chunk("I look.", "find"), delta("Hi", 2), chunk("Hi\x1b.", iteration=2)):
        screen.progress(1, None, "not here")
        screen.payload(payload)
    screen.finish("Hi\x1b.")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("Hi\x1b.\n", "echo: I look.\necho → find {}\n")
    assert screen.tools == ["find"]


def completions(text: str) -> list[str]:
    choices = Choices(lambda: ["temperature", "top_p"], lambda: ["cats", "#2"])
    return [one.text for one in choices.get_completions(Document(text), CompleteEvent())]


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("/s", ["/set ", "/system ", "/save "]),
        ("/q", ["/quit"]),
        ("/e", ["/export ", "/exit"]),
        ("/set te", ["temperature"]),
        ("/unset t", ["temperature", "top_p"]),
        ("/resume ", ["cats", "#2"]),
        ("/system o", ["override", "off"]),
        ("/clear ", []),
        ("/nothing ", []),
        ("hello", []),
        ("", []),
    ],
)
def test_tab_offers_what_there_is(text: str, offered: list[str]) -> None:
    assert completions(text) == offered


def test_tab_offers_files_for_images(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.png").touch()
    assert completions("/image c") == ["at.png"]


@pytest.mark.parametrize(("line", "message"), [("hello", "hello"), ("//x", "/x"), (" /x", " /x"), ("", "")])
def test_what_is_no_command_is_said(line: str, message: str) -> None:
    assert read(line) == (None, message)


@pytest.mark.parametrize(
    ("rest", "path", "text"),
    [
        ("a.png", "a.png", ""),
        ("'a b.png' it's\na cat", "a b.png", "it's\na cat"),
        ("a\\ b.png #1?", "a b.png", "#1?"),
        ("a#1.png", "a#1.png", ""),
    ],
)
def test_a_path_may_hold_spaces(rest: str, path: str, text: str) -> None:
    assert [str(one) for one in path_and_text(rest)] == [path, text]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "number"}, "1", 1),
        ({"type": "string"}, "1", "1"),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": "boolean"}, "true", True),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"anyOf": [{"enum": ["auto", "none"], "type": "string"}, {"type": "object"}]}, "auto", "auto"),
        ({}, "what it likes", "what it likes"),
        ({"oneOf": [{"type": "array"}, {"type": "string"}]}, '["a"]', ["a"]),
        # Lengths are for the gateway: of another length, these are no texts.
        ({"anyOf": [{"type": "string"}, {"type": "array", "maxItems": 1}]}, '["a", "b"]', ["a", "b"]),
        ({"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}]}, '""', ""),
        ({"type": "string", "minLength": 1}, "", ""),
    ],
)
def test_a_value_is_read_as_the_kind_that_is_taken(schema: dict[str, Any], text: str, value: object) -> None:
    assert value_of("x", text, {"x": schema}) == value


@pytest.mark.parametrize(
    "schema", [{}, {"properties": {}}, {"properties": {"params": {"type": "object"}}}, {"properties": None}]
)
def test_a_tool_without_parameters_offers_none(schema: dict[str, Any]) -> None:
    assert offered_by(schema) == {}


@pytest.mark.parametrize(
    "listed",
    [
        {"type": "object", "description": "How the model answers: {temperature, stop, of_a_newer_gateway}"},
        {"type": ["object", "null"], "propertyNames": {"enum": ["temperature", "stop", "of_a_newer_gateway"]}},
    ],
    ids=["now", "an older gateway"],
)
def test_what_a_listed_parameter_takes_is_known_without_the_agents_schema(listed: dict[str, Any]) -> None:
    offered = offered_by({"properties": {"message": {"type": "string"}, "params": listed}})
    assert list(offered) == ["temperature", "stop", "of_a_newer_gateway"]
    assert (value_of("temperature", "1.5", offered), value_of("stop", "END", offered)) == (1.5, "END")
    assert value_of("of_a_newer_gateway", "7", offered) == 7
    with pytest.raises(UsageError, match="temperature takes a number from 0 to 2, not 3"):
        value_of("temperature", "3", offered)


def drawn(pieces: list[str], width: int = 10) -> list[str]:
    """The lines of a terminal that wraps at its edge."""
    lines = [""]
    breaks = LineBreaks(lambda: width)
    for character in "".join(map(breaks.take, pieces)).replace("\x1b[K", "\x1b"):
        if character == "\n":
            lines.append("")
        elif character == "\b":
            lines[-1] = lines[-1][:-1]
        elif character != "\x1b":
            if len(lines[-1]) == width + 1:
                lines.append("")
            lines[-1] += character
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("the notes that fit best", ["the notes", "that fit", "best"]),
        ("exactly 10 x", ["exactly 10", "x"]),
        ("a\nb  c", ["a", "b  c"]),
        ("in thi_s_long_word here", ["in thi_s_lo", "ng_word", "here"]),
        ("1234567890 a", ["1234567890", "a"]),
        ("", [""]),
    ],
)
def test_words_are_not_broken_in_one_piece_or_in_many(text: str, lines: list[str]) -> None:
    assert drawn([text]) == lines
    if "long_word" not in text:  # in pieces it is moved to the next line first, and broken there
        assert drawn(list(text)) == lines
        assert drawn([text[:5], text[5:]]) == lines


def test_a_word_is_shown_as_it_grows() -> None:
    breaks = LineBreaks(lambda: 10)
    pieces = ("the not", "es", " be", "tter")
    assert [breaks.take(piece) for piece in pieces] == ["the not", "es", " \nbe", "tter"]
    assert [breaks.take(piece) for piece in (" sho", "wn")] == [" sho", "\b\b\b\x1b[K\nshown"]
