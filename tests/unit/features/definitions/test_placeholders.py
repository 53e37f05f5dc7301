"""Placeholders of every kind and spelling: what fast-agent could read for an agent of the database is refused."""

from __future__ import annotations

import re

import pytest
from fast_agent.core import instruction
from fast_agent.core.direct_decorators import _apply_templates

from pallas_gateway.features.definitions.placeholders import ALLOWED, why_refused

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
    ],
)
def test_other_spellings_escapes_and_compositions_are_refused(text: str) -> None:
    assert why_refused(text) is not None


@pytest.mark.parametrize(
    "text", ["${HOME}", "a ${HOME:-b} c", "${HOME:b}", "$${HOME}", "${ HOME }", "${ä}", "${{file:x}}"]
)
def test_variables_of_the_environment_are_refused(text: str) -> None:
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
