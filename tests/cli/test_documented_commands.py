"""The commands and options that documents name exist, and every command and option is in a document."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from typer.main import get_command

from pallas_gateway.cli.commands import app, older
from tests.support.documents import pages

OF_OTHERS = {
    "docs/operate/deploy.md": {"--build-arg", "--detach", "--format", "--from-literal", "--kustomize", "--tag"},
    "docs/operate/observability.md": {"--rm"},
    "docs/operate/providers.md": {"--mmproj"},
    "docs/operate/stdio-servers.md": {"--isolated"},
    "docs/operate/upgrading.md": {
        "--exit-on-error", "--constraint", "--dbname", "--fast-agent", "--format", "--only", "--single-transaction",
        "--no-owner",
    },
    "docs/use/connect.md": {"--header", "--scope", "--transport", "--bearer-token-env-var", "--allow-http"},
    "docs/use/openai-api.md": {"--no-show-model-warnings", "--chat", "--no-cache"},
}  # fmt: skip
"""Options of other programs."""
OF_TYPER = {"--install-completion", "--show-completion", "--help"}
PROGRAM = re.compile(r"\bpallas-gateway ((?:\\\n|[^\n`#|<])*)")
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*\b(?!\()")
LONG_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
NO_CALLS = {"docs/upstream.md", "docs/performance.md"}


@cache
def commands() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}

    def collect(command: Any, words: tuple[str, ...]) -> None:
        options = (name for one in command.params for name in (*one.opts, *one.secondary_opts))
        found[" ".join(words)] = frozenset(name for name in options if name.startswith("-")) - OF_TYPER
        for name, below in getattr(command, "commands", {}).items():
            collect(below, (*words, name))

    collect(get_command(app), ())
    return found


@cache
def texts() -> dict[str, str]:
    return {name: text for name, text in pages().items() if name not in NO_CALLS}


def calls(text: str) -> Iterator[tuple[str, set[str]]]:
    """The commands of a text and the options that stand after them, on the same line or in the same code."""
    for rest in PROGRAM.findall(re.sub(r"(`[^`\n]*)\n([^`\n]*`)", r"\1 \2", text)):
        words = re.match(r"(?:[a-z]+ ?)*", rest)
        names = words[0].split() if words else []
        known = [" ".join(names[:length]) for length in range(len(names), 0, -1)]
        command = next((one for one in known if one in commands()), " ".join(names[:1]))
        yield command, set(OPTION.findall(rest))


def test_commands_are_found_in_text() -> None:
    assert list(calls("run `pallas-gateway calls end ID --url U`, then pallas-gateway serve --config a # --no\n")) == [
        ("calls end", {"--url"}),
        ("serve", {"--config"}),
    ]
    assert len(commands()) > 30


def test_every_command_that_a_document_names_exists() -> None:
    named = {(name, command) for name, text in texts().items() for command, _ in calls(text)}
    assert {one for one in named if one[1] not in commands()} == set()


def test_the_options_after_a_command_are_its_own() -> None:
    used = [(name, command, options) for name, text in texts().items() for command, options in calls(text)]
    assert sum(len(options) for *_, options in used) > 30
    assert [one for one in used if not one[2] <= commands().get(one[1], frozenset())] == []


def test_every_option_that_a_document_names_is_one_of_a_command() -> None:
    known = frozenset().union(*commands().values())
    named = {
        (name, option) for name, text in texts().items() for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
    }
    unknown = {one for one in named if one[1] not in known}
    assert unknown == {(name, option) for name, options in OF_OTHERS.items() for option in options}


def test_every_command_and_option_is_in_a_document() -> None:
    whole = re.sub(r"\s+", " ", "\n".join(texts().values()))
    missing = {one for one in commands() if one and not re.search(rf"(pallas-gateway |`){one}\b", whole)}
    options = {(command, one) for command, own in commands().items() for one in own}
    unnamed = {one for one in options if not re.search(rf"(?<![\w-]){one[1]}(?![\w-])", whole)}
    assert (missing, unnamed) == (set(), set())


def test_the_older_program_has_the_options_of_serve() -> None:
    assert {name for one in get_command(older).params for name in one.opts} - OF_TYPER == commands()["serve"]
