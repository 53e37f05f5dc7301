"""Definitions as clients write them: both spellings of keys, all problems at once, and hostile documents."""

import json
import re
from time import process_time
from typing import Any

import pytest
from fast_agent.core import instruction
from fast_agent.core.direct_decorators import _apply_templates

from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.features.definitions.definition import (
    ALLOWED,
    KEYS,
    definition_of,
    in_camel_case,
    parsed,
    patched,
    settings_of,
    why_refused,
)

BASE: dict[str, Any] = {"instruction": "You help."}
FULL: dict[str, Any] = {
    "title": "Helper",
    "description": "Helps.",
    "icon": "icons/helper.svg",
    "instruction": "You help on {{currentDate}}.",
    "model": "openai.gpt-5",
    "servers": ["notes"],
    "tools": ["notes__get_*"],
    "agents": ["desk"],
    "params": {"max_tokens": 100, "response_format": {"type": "json_object"}, "stop": ["END"]},
    "examples": ["What is new?\nIn short."],
    "max_iterations": 5,
    "loop_repeat_threshold": 0,
    "call_timeout_seconds": 60.0,
    "max_in_flight": 2,
    "approve": ["notes/*", "destructive"],
    "tool_limits": {"notes/*": 3},
    "max_tokens_per_call": 1000,
    "human_input": True,
}


def problems(written: Any) -> dict[str, str]:
    found = parsed(written).problems
    assert len({one.path for one in found}) == len(found)
    return {one.path: one.message for one in found}


def test_a_definition_has_all_keys_in_both_spellings() -> None:
    assert set(FULL) == set(KEYS)
    camel = in_camel_case(FULL)
    assert {"maxIterations", "callTimeoutSeconds", "toolLimits", "maxTokensPerCall", "humanInput"} < camel.keys()
    assert {"loopRepeatThreshold", "maxInFlight"} < camel.keys()
    camel["params"] = {"maxTokens": 100, "responseFormat": {"type": "json_object"}, "stop": "END"}
    for written in (FULL, camel):
        read = parsed(written)
        assert read.problems == ()
        assert read.definition == FULL
    assert json.loads(json.dumps(FULL)) == FULL


def test_what_was_stored_is_read_as_the_same_and_is_what_an_agent_is_made_of() -> None:
    assert parsed(dict(FULL)).definition == FULL
    settings = settings_of(FULL)
    assert settings.default_params.max_tokens == 100
    assert (settings.max_iterations, settings.human_input, settings.tools) == (5, True, ("notes__get_*",))
    assert definition_of(settings, FULL["instruction"]) == FULL


def test_keys_that_definitions_cannot_have_are_left_out_of_a_copy() -> None:
    settings = AgentSettings.model_validate({
        "instruction_file": "a.md", "port": 9000, "watch": ["b"], "ask_caller": False, "approve_unasked": "allow",
        "default_params": {"temperature": 0.5, "extra": {"seed": 1}}, "icons": [{"src": "a.svg"}], "max_iterations": 3,
    })  # fmt: skip
    assert definition_of(settings, "You help.") == {**BASE, "max_iterations": 3, "params": {"temperature": 0.5}}


@pytest.mark.parametrize("written", [None, [], "text", 5, True])
def test_a_definition_that_is_no_object_is_refused(written: object) -> None:
    assert problems(written) == {"": "must be an object"}


def test_null_means_absent() -> None:
    read = parsed({**BASE, "title": None, "tools": None, "params": {"seed": None}, "servers": None})
    assert read.problems == ()
    assert {key: value for key, value in read.definition.items() if value} == BASE


def test_all_problems_come_at_once_with_the_paths_of_the_client() -> None:
    written = {
        "maxIterations": 0,
        "max_in_flight": "2",
        "loopRepeatThreshold": 1,
        "loop_repeat_threshold": 2,
        "callTimeoutSeconds": -1,
        "toolLimits": {"notes": 1, "a/b": -1},
        "params": {"maxTokens": 0, "top_p": 2, "extra": {"a": 1}, "colour": 1},
        "servers": ["a", 5],
        "tools": "all",
        "humanInput": "yes",
        "module": "os",
        "instructionFile": "/etc/passwd",
        "maxIteration": 5,
        "name": "x",
    }
    found = problems(written)
    assert found.keys() == {
        "instruction", "maxIterations", "max_in_flight", "loop_repeat_threshold", "callTimeoutSeconds",
        "toolLimits.notes", "toolLimits.a/b", "params.maxTokens", "params.top_p", "params.extra", "params.colour",
        "servers.1", "tools", "humanInput", "module", "instructionFile", "maxIteration", "name",
    }  # fmt: skip
    assert found["instruction"] == "is required"
    assert found["loop_repeat_threshold"] == "is given twice, also as 'loopRepeatThreshold'"
    assert "agents.yaml only" in found["params.extra"]
    assert found["maxIteration"] == "unknown key (did you mean 'maxIterations'?)"
    assert found["instructionFile"].startswith("unknown key")


@pytest.mark.parametrize(
    "key",
    ["module", "instruction_file", "card", "agent", "watch", "port", "depends_on", "icons", "model_capabilities",
     "ask_caller", "approve_unasked", "default_params", "caller_params", "models", "max_cost_per_call", "extends",
     "__class__", "constructor", "owner", "id", "version", "source"],
)  # fmt: skip
def test_other_keys_of_agents_are_refused(key: str) -> None:
    assert problems({**BASE, key: "x"}).keys() == {key}


@pytest.mark.parametrize(
    "path", ["instruction", "title", "servers.0", "examples.0", "params.stop.0", "toolLimits.{}/a"]
)
@pytest.mark.parametrize("text", ["{{file:/etc/passwd}}", "${HOME}", "a\0b", "a\ud800"])
def test_placeholders_nul_and_half_characters_are_refused_everywhere(path: str, text: str) -> None:
    top = path.partition(".")[0]
    by_key: dict[str, dict[str, Any]] = {
        "title": {"title": text},
        "instruction": {"instruction": text},
        "servers": {"servers": [text]},
        "examples": {"examples": [text]},
        "params": {"params": {"stop": [text]}},
        "toolLimits": {"toolLimits": {f"{text}/a": 1}},
    }
    assert problems({**BASE, **by_key[top]})


@pytest.mark.parametrize(
    "text", ["a\u202eb", "a\u200bb", "a\x1b[31mb", "a\nb", "\u2066x", "a\u2028b", "\ufeffa", "a\x7fb"]
)
@pytest.mark.parametrize("key", ["title", "description", "model"])
def test_texts_for_people_have_no_control_characters(key: str, text: str) -> None:
    assert "control character" in problems({**BASE, key: f"x{text}x"})[key]


def test_other_scripts_and_emoji_are_welcome() -> None:
    read = parsed(
        {**BASE, "title": "عربي \U0001f469\u200d\U0001f4bb", "description": "日本語", "examples": ["Was?\nWer?"]}
    )
    assert read.problems == ()


NO_ICONS = ["javascript:alert(1)", "JavaScript:alert(1)", "file:///etc/passwd", "data:text/html,x", "x:y"]
ICONS = ["https://a.example/i.svg", "data:image/png;base64,AAAA", "icons/a.svg", "/a.svg", "../a?b:c"]


@pytest.mark.parametrize("icon", [*NO_ICONS, *ICONS])
def test_an_icon_is_an_image_somewhere_and_no_program(icon: str) -> None:
    assert problems({**BASE, "icon": icon}).keys() == ({"icon"} if icon in NO_ICONS else set())


def deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ({"instruction": "x" * 10_000_000}, "instruction"),
        ({"instruction": "\u00e9" * 100_001}, "instruction"),
        ({**BASE, "title": "x" * 201}, "title"),
        (
            {**BASE, "params": {"response_format": {"type": "json_schema", "json_schema": {"schema": deep(5000)}}}},
            "params",
        ),
        ({**BASE, "x": deep(100_000)}, "x"),
        ({**BASE, "servers": ["a"] * 101}, "servers"),
        ({**BASE, "tools": [5] * 20_000}, "tools"),
        ({**BASE, "examples": ["x" * 2001]}, "examples.0"),
        ({**BASE, "tools": ["a__" + "x" * 300]}, "tools.0"),
        ({**BASE, "examples": ["x" * 1000] * 300}, ""),
        ({**BASE, "maxIterations": 10**400}, "maxIterations"),
        ({**BASE, "callTimeoutSeconds": float("inf")}, "callTimeoutSeconds"),
        ({**BASE, "params": {"temperature": float("nan")}}, "params.temperature"),
        ({**BASE, **{f"key{number}": 1 for number in range(10_000)}}, ""),
        ({**BASE, "a\ud800": 1}, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hostile_document_is_one_problem_soon(written: Any, path: str) -> None:
    began = process_time()
    found = problems(written)
    assert process_time() - began < 3
    assert path in found
    assert len(found) <= 21
    assert len(str(found)) < 10_000


def test_a_document_of_the_largest_size_is_accepted() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"description": "y" * 150_000}}}
    read = parsed({"instruction": "\u00e9" * 50_000, "params": {"responseFormat": schema}})
    assert read.problems == ()


@pytest.mark.parametrize(
    ("patch", "changed"),
    [
        ({}, {}),
        ({"maxIterations": 9}, {"max_iterations": 9}),
        ({"max_iterations": 9}, {"max_iterations": 9}),
        ({"maxIterations": None}, {"max_iterations": None}),
        ({"params": {"maxTokens": 5}}, {"params": {**FULL["params"], "max_tokens": 5}}),
        ({"params": {"max_tokens": None, "stop": None}}, {"params": {"response_format": {"type": "json_object"}}}),
        ({"params": None}, {"params": None}),
        ({"toolLimits": {"notes/*": None, "a/b": 1}}, {"tool_limits": {"a/b": 1}}),
    ],
)
def test_a_patch_in_either_spelling_changes_what_is_stored(patch: Any, changed: dict[str, Any]) -> None:
    read = parsed(patched(FULL, patch))
    assert read.problems == ()
    assert read.definition == {key: value for key, value in {**FULL, **changed}.items() if value is not None}


@pytest.mark.parametrize("patch", [None, [], "x", 5])
def test_a_patch_that_is_no_object_is_refused(patch: object) -> None:
    assert parsed(patched(FULL, patch)).problems[0].message == "must be an object"


def test_a_patch_that_takes_a_required_key_away_or_brings_a_deep_document_is_refused() -> None:
    assert [one.path for one in parsed(patched(FULL, {"instruction": None})).problems] == ["instruction"]
    assert [one.path for one in parsed(patched(FULL, {"params": deep(900)})).problems] == ["params"]


# As fast-agent documents them, and as it fills them in.
KNOWN = sorted({
    *re.findall(r"\{\{(\w+)", instruction.__doc__ or ""),
    "env", "executionEnvironment", "executionEnvironmentCwd", "hostWorkspaceRoot", "agentSkills", "model_specific",
    "clientInfo", "internal", "file", "file_silent", "url",
} - {"currentDate", "serverInstructions"})  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("form", ["{{%s}}", "{{%s:secret}}", "{{ %s }}", "{{%s:", "a{{%s:b}}c", r"\{{%s:x\}}"])
def test_every_other_placeholder_is_refused(name: str, form: str) -> None:
    assert why_refused(form % name) is not None


@pytest.mark.parametrize(
    "text",
    [
        "{{FILE:x}}",
        "{{File:x}}",
        "{{\u200bfile:x}}",
        "{\u2060{file:x}}",
        "{{\nfile:x\n}}",
        "{{file:\nx}}",
        "{{\u0131nternal:x}}",
        "{{{file:x}}}",
        "{{{{file:x}}}}",
        "{{{{currentDate}}}}",
        "{{fi{{currentDate}}le:x}}",
        "{{{{serverInstructions}}file:x}}",
        "{{{serverInstructions}}{file:x}}",
        "{{currentdate}}",
        "{{ currentDate }}",
        "{{currentDate }}",
        "{{somethingNew}}",
        "{{_}}",
        "__FAST_AGENT_ESCAPED_OPEN__file:x__FAST_AGENT_ESCAPED_CLOSE__",
        r"\{{file:x\}}",
        r"\\{{file:x}}",
        "x" * 99_000 + "{{file:x}}",
        *("${HOME}", "a ${HOME:-b} c", "${HOME:b}", "$${HOME}", "${ HOME }", "${ä}", "${{file:x}}"),
    ],
)
def test_other_spellings_escapes_and_compositions_and_variables_of_the_environment_are_refused(text: str) -> None:
    assert why_refused(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Today is {{currentDate}}. {{serverInstructions}}",
        "{{currentDate}}{{currentDate}}",
        "{{{serverInstructions}} {a}}",
        "a ${ that does not end",
        "{{{currentDate}}}",
        'Write JSON: {"a": {"b": 1}}',
        'f-strings: {{"a": 1}} and {{1, 2}}',
        "{ {} } {}",
        "{ { 1 } } and { {a: 1}, {b: 2} }",
        "$5 {a} $HOME $",
        "}}{{",
    ],
)
def test_other_texts_and_the_two_allowed_ones_stay(text: str) -> None:
    assert why_refused(text) is None


@pytest.mark.parametrize("text", ['{{"a": 1}} {{currentDate}} {{1, 2}} }}{{', "{{{currentDate}}}"])
async def test_fast_agent_replaces_nothing_else_in_a_text_that_is_accepted(text: str) -> None:
    assert why_refused(text) is None
    made = _apply_templates(text)
    built = instruction.InstructionBuilder(made)
    built.set_many(dict.fromkeys(KNOWN, "READ"))
    assert await built.build() == made
    assert "READ" not in made


def test_the_message_shows_what_is_refused_and_what_is_allowed() -> None:
    why = why_refused("Read\n{{file:prompts/x.md}} and more")
    assert why is not None
    assert "{{file:prompts/x.md}}" in why
    assert all(name in why for name in ALLOWED)
    variable = why_refused("${" + "A" * 500 + "}")
    assert variable is not None
    assert len(variable) < 200


def test_a_hostile_text_is_judged_in_time_that_grows_with_its_length() -> None:
    assert why_refused("{ " * 50_000) is None
    assert why_refused("{\u200b" * 50_000 + "{{1") is not None
    assert why_refused("{" + " " * 99_000) is None
    assert why_refused("{{currentDate}}" * 6_000 + "${" * 10_000) is None
