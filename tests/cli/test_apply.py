"""`export` and `apply`: what one prints the other takes, and of the file only what changes is touched."""

import io
import os
import pty
import select
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pallas_gateway.client.agents import definitions as shown
from tests.support import forked
from tests.support.commands import GATEWAY, READY_SECONDS, Command
from tests.support.pairs import pairs

OTHER = '    other: {module: agents.other, description: "${WORDS:-Other, and more}"}'
WRITTEN = """\
# What we serve.
name: demo   # its name
x-limits: &limits {max_iterations: 3, max_in_flight: 2}

agents:
    # finds things
    research:
        module: agents.research   # where it is
        title:   "Research"
        depends_on:
        - other
        # more to come

@OTHER
    x-note: not an agent
    quiet:
        <<: *limits
        module: agents.quiet

# Where we serve it.
gateway:
    port: 0
""".replace("@OTHER", OTHER)
TWICE = "is already on line"
SHAPE = "must be a mapping with 'agents:', as 'pallas-gateway export' prints it"


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "agents.yaml"
    path.write_text(WRITTEN)
    return path


def definitions(folder: Path, text: str) -> Path:
    path = folder / "new.yaml"
    path.write_text(text)
    return path


def changed(before: str, after: str) -> tuple[list[str], list[str]]:
    """The lines that went, and those that came."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_applying_what_was_printed_changes_nothing(run: Command, file: Path) -> None:
    for agent in ("research", "other", "quiet", None):
        printed = run("export", *([agent] if agent else []))
        ran = run("apply", "-f", definitions(file.parent, printed.out))
        assert (printed.code, ran.code, ran.out) == (0, 0, "agents.yaml: nothing changes\n")
        assert file.read_text() == WRITTEN
    assert (
        run("export", "quiet").out
        == "agents:\n  quiet:\n    max_iterations: 3\n    max_in_flight: 2\n    module: agents.quiet\n"
    )
    assert "${WORDS:-Other, and more}" in run("export", "other").out
    assert "x-note" not in run("export").out


def test_a_change_is_shown_and_written_only_with_yes(run: Command, file: Path) -> None:
    new = definitions(file.parent, "agents: {research: {module: agents.better, title: Research, depends_on: [other]}}")
    shown = run("apply", "-f", new)
    assert (shown.code, file.read_text()) == (1, WRITTEN)
    assert (
        "-        module: agents.research   # where it is\n+        module: agents.better   # where it is\n"
        in shown.out
    )
    assert shown.err == "nothing was written; --yes writes it\n"

    file.chmod(0o640)
    written = run("apply", "-f", new, "--yes")
    assert (written.code, written.out) == (0, f"{shown.out}agents.yaml: changed research\n")
    assert file.read_text() == WRITTEN.replace("agents.research ", "agents.better ")
    assert file.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in file.parent.iterdir()} == {"agents.yaml", "new.yaml"}


@pairs(
    {
        "text, expected": [
            ("{added: {module: m}}", ([], ["    added:", "      module: m"])),
            (
                '{added: {module: m, description: "a\\nb"}}',
                ([], ["    added:", "      module: m", "      description: |-", "        a", "        b"]),
            ),
            ("{other: {module: agents.other}}", ([OTHER], ["    other: {module: agents.other}"])),
            (
                "{research: {module: agents.research, title: Research}}",
                (["        depends_on:", "        - other"], []),
            ),
            (
                "{research: {module: agents.research, title: Research, depends_on: [other, quiet]}}",
                (["        depends_on:", "        - other"], ["        depends_on: [other, quiet]"]),
            ),
            (
                "{research: {module: agents.research, title: Research, depends_on: [other], port: 8201}}",
                ([], ["        port: 8201"]),
            ),
            (
                "{research: {module: agents.research, title: 'on', depends_on: [other]}}",
                (['        title:   "Research"'], ["        title: 'on'"]),
            ),
            (
                "{quiet: {module: agents.quiet, max_iterations: 9, max_in_flight: 2}}",
                ([], ["        max_iterations: 9"]),
            ),
            (
                "{quiet: {module: agents.quiet}}",
                (["        <<: *limits", "        module: agents.quiet"], ["      module: agents.quiet"]),
            ),
        ],
        "newline": ["\n", "\r\n"],
    }
)
def test_only_the_lines_that_change_are_others_afterwards(
    text: str, expected: tuple[list[str], list[str]], newline: str, run: Command, file: Path
) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + WRITTEN.replace("\n", newline).encode())
    ran = run("apply", "-f", definitions(file.parent, f"agents: {text}"), "-y")
    after = file.read_bytes().decode()
    assert ran.code == 0, ran.err
    assert changed(WRITTEN, after.removeprefix("\ufeff")) == expected
    assert after.startswith("\ufeff")
    assert after.count("\n") == after.count(newline)
    assert run("apply", "-f", file.parent / "new.yaml").out == "agents.yaml: nothing changes\n"


COMMENTED = """\
agents:
  assistant:
    instruction: Help.
    # agents: [reviewer]   # others that it may call

    # model: openai.gpt-5-mini

  # reviewer:
  #   module: agents.reviewer
  limited:
    module: agents.limited
    default_params:
      temperature: 1
      # max_tokens: 300
    # port: 8201
  last:
    module: agents.last
    # title: Last

# gateway:
#   port: 24200
"""


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("{new: {module: m}}", "    # title: Last\n", "    # title: Last\n  new:\n    module: m\n"),
        (
            "{assistant: {instruction: Help., port: 8202}}",
            "    instruction: Help.\n",
            "    instruction: Help.\n    port: 8202\n",
        ),
        (
            "{limited: {module: agents.limited, default_params: {temperature: 1}, title: L}}",
            "      # max_tokens: 300\n",
            "      # max_tokens: 300\n    title: L\n",
        ),
        (
            "{limited: {module: agents.limited}}",
            "    default_params:\n      temperature: 1\n      # max_tokens: 300\n",
            "",
        ),
    ],
)
def test_keys_that_are_commented_out_stay_with_their_block(
    text: str, before: str, after: str, run: Command, file: Path
) -> None:
    file.write_text(f"name: demo\n{COMMENTED}")
    assert run("apply", "-f", definitions(file.parent, f"agents: {text}"), "-y").code == 0
    assert before in COMMENTED
    assert file.read_text() == f"name: demo\n{COMMENTED.replace(before, after)}"


def test_text_of_several_lines_is_the_same_text_at_the_end_of_a_file(run: Command, file: Path) -> None:
    file.write_text("name: demo\nagents:\n  a:\n    module: a")
    for text in ("one\\ntwo", "one\\ntwo\\n", "one\\n\\n", "# one\\n  two"):
        new = definitions(file.parent, f'agents: {{a: {{module: a, description: "{text}"}}}}')
        assert run("apply", "-f", new, "-y").code == 0
        assert run("apply", "-f", new).out == "agents.yaml: nothing changes\n"
        again = definitions(file.parent, run("export").out)
        assert run("apply", "-f", again).out == "agents.yaml: nothing changes\n"


def test_a_file_may_hold_several_documents_and_lists(run: Command, file: Path) -> None:
    text = "agents: {a: {module: a}}\n---\n- agents: {b: {module: b}}\n- x-free: 1\n  agents: {c: {module: c}}\n---\n"
    ran = run("apply", "-f", definitions(file.parent, text), "--yes")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "agents.yaml: added a, b, c")


@pytest.mark.parametrize(
    "written",
    ["name: demo\nagents:\ngateway: {port: 0}\n", "agents: {}\nname: demo\n", "name: demo", "name: demo\nagents:"],
)
def test_a_first_agent_may_be_added(written: str, run: Command, file: Path) -> None:
    file.write_text(written)
    assert (
        run("apply", "-f", definitions(file.parent, "agents: {a: {module: a, icons: [{src: /a.png}]}}"), "-y").code == 0
    )
    assert run("export").out == "agents:\n  a:\n    module: a\n    icons:\n      - src: /a.png\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agents: [", "new.yaml:1: not valid YAML: a bracket or brace is not closed"),
        (
            "agents: {a: {module: a}}\n---\nagents: {a: {module: b}}",
            f"new.yaml:3: agents.a: this agent {TWICE} 1; keep one of them",
        ),
        ("agents:\n  a: {module: a}\n  a: {module: a}", f"new.yaml:3: agents.a: this key {TWICE} 2; keep one of them"),
        (
            "name: demo\nagents: {a: {module: a}}",
            "new.yaml:1: name: only 'agents' can be applied; change other settings in agents.yaml",
        ),
        ("agents: [a]", "new.yaml:1: agents: must be a mapping of agents by name"),
        ("- research", f"new.yaml:1: {SHAPE}"),
        ("", f"new.yaml: defines no agent; it {SHAPE}"),
        ("agents:\n  a:\n    module: a\n    prot: 1", "new.yaml:4: agents.a.prot: unknown key (did you mean 'port'?)"),
        (
            "agents:\n  a:\n    module: a\n    depends_on: [quite]",
            "new.yaml:4: agents.a.depends_on: no agent 'quite' (did you mean",
        ),
        ("agents:\n  a: null", "new.yaml:2: agents.a: "),
        ("agents:\n  a:\n    module: ${NOT_SET}", "new.yaml:3: agents.a.module: environment variable NOT_SET"),
    ],
)
def test_what_cannot_be_applied_is_said_with_its_place_and_nothing_is_written(
    text: str, message: str, run: Command, file: Path
) -> None:
    ran = run("apply", "-f", definitions(file.parent, text), "--yes")
    assert (ran.code, file.read_text()) == (2, WRITTEN)
    assert message.replace("new.yaml", str(file.parent / "new.yaml")) in ran.err


def test_an_agent_that_others_lean_on_is_left_to_people(run: Command, file: Path) -> None:
    shared = "name: demo\nagents:\n  a: &a {module: a}\n  b: *a\n"
    file.write_text(shared)
    ran = run("apply", "-f", definitions(file.parent, "agents: {a: {module: other}}"), "--yes")
    assert (ran.code, file.read_text()) == (2, shared)
    assert "agents.yaml: agents.a: cannot be changed by a program here" in ran.err

    assert run("apply", "-f", definitions(file.parent, "agents: {b: {module: other}}"), "--yes").code == 0
    assert file.read_text() == shared.replace("*a", "\n    module: other").replace("b: \n", "b:\n")


def test_a_file_that_is_not_there_or_no_text_is_said_so(run: Command, file: Path) -> None:
    new = definitions(file.parent, "agents: {a: {module: a}}")
    nowhere = file.parent / "nowhere.yaml"
    assert run("apply", "-f", nowhere).err == f"{nowhere}: no such file; -f names a file as `export` prints it\n"
    assert "cannot be read" in run("apply", "-f", file.parent).err
    new.write_bytes(b"\xff")
    assert "is not UTF-8 text" in run("apply", "-f", new).err
    assert run("export", "reserch").err == "agents.yaml has no agent 'reserch' (did you mean 'research'?).\n"
    file.unlink()
    assert run("export").code == 2


def test_stdin_is_read_for_a_dash_and_leaves_no_question(
    run: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for yes, code in (((), 1), (("--yes",), 0)):
        stdin = SimpleNamespace(buffer=io.BytesIO(b"agents: {a: {module: a}}"), isatty=lambda: True)
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run("apply", "-f", "-", *yes).code == code
    assert "    a:\n      module: a\n" in file.read_text()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff")))
    assert run("apply", "-f", "-").err == "stdin is not UTF-8 text.\n"


def test_a_symbolic_link_is_followed(run: Command, file: Path) -> None:
    real = file.rename(file.parent / "real.yaml")
    file.symlink_to(real)
    assert run("apply", "-f", definitions(file.parent, "agents: {a: {module: a}}"), "--yes").code == 0
    assert file.is_symlink()
    assert "    a:\n" in real.read_text()


def test_what_somebody_else_wrote_meanwhile_is_not_lost(
    run: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show_and_be_edited(*_: object) -> None:
        file.write_text("name: other\n")

    monkeypatch.setattr(shown, "show_difference", show_and_be_edited)
    ran = run("apply", "-f", definitions(file.parent, "agents: {a: {module: a}}"), "--yes")
    assert (ran.code, file.read_text()) == (2, "name: other\n")
    assert ran.err == "agents.yaml was changed meanwhile; nothing was written. Apply again.\n"
    assert {path.name for path in file.parent.iterdir()} == {"agents.yaml", "new.yaml"}


def test_a_place_that_cannot_be_written_is_said_so(run: Command, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    ran = run("apply", "-f", definitions(file.parent, "agents: {a: {module: a}}"), "--yes")
    assert (ran.code, file.read_text()) == (2, WRITTEN)
    assert ran.err == "agents.yaml cannot be written: No space left on device; nothing was changed.\n"


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_on_a_terminal_the_diff_is_coloured_and_a_question_asked(answer: str, code: int, file: Path) -> None:
    definitions(file.parent, "agents: {a: {module: a}}")
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "NO_COLOR": "", "PALLAS_AGENTS_CONFIG": "agents.yaml"}
    process = forked.start([*GATEWAY, "apply", "-f", "new.yaml"], file.parent, environ, (theirs, theirs, theirs))
    try:
        os.close(theirs)
        seen = b""
        while b"[y/N]" not in seen:
            assert select.select([ours], [], [], READY_SECONDS)[0], seen
            seen += os.read(ours, 10_000)
        os.write(ours, f"{answer}\n".encode())
        assert process.wait(READY_SECONDS) == code
    finally:
        process.kill()
        os.close(ours)
    assert b"\x1b[32m+    a:" in seen
    assert ("    a:\n" in file.read_text()) == (answer == "y")
