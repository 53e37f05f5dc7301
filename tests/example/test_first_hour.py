"""Each path of docs/first-hour.md is walked as it stands there, on the example: commands, settings and program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import httpx
import pytest

from tests.changed import files_for
from tests.support.commands import READY_SECONDS, Program, Ran, started
from tests.support.documents import ROOT
from tests.support.listener import reserved_port

BEGINNING, *PATHS = re.split(r"^## ", (ROOT / "docs/first-hour.md").read_text(), flags=re.MULTILINE)
SECTIONS = dict(path.split("\n", 1) for path in PATHS)
BLOCK = re.compile(r"^```(console|yaml|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
KEY = re.compile(r"(?:export (\w+)=)\$\((.+)\)")
LOGGED = "# serve logs: "
CHANGED = "pallas_gateway/example/demo_model.py"


@dataclass
class Reader:
    """Does what a path says, in `folder`."""

    folder: Path
    port: int
    environ: dict[str, str]
    stack: ExitStack
    sha256: str = ""
    gateways: list[Program] = field(default_factory=list)

    def follow(self, title: str) -> int:
        """Return how many commands the path has, after each did what stands below it."""
        count = 0
        for language, text in BLOCK.findall(SECTIONS[title].replace("24200", str(self.port))):
            if language == "yaml":
                with (self.folder / "agents.yaml").open("a") as file:
                    file.write(text.replace("5d051208…", self.sha256))
            elif language == "python":
                (self.folder / text.split()[1]).write_text(text)
            else:
                for command, expected in STEP.findall(text):
                    self.check(command, expected.splitlines(), self.do(command))
                    count += 1
        return count

    def check(self, command: str, expected: list[str], ran: Ran) -> None:
        printed = f"{ran.out}\n{ran.err}"
        assert (ran.code != 0) == command.endswith("# fails"), f"{command}\n{printed}"
        for line in expected:
            words = (r"\s+".join(map(re.escape, part.split(" "))) for part in re.sub(" +", " ", line).split("…"))
            assert re.search(".*".join(words), printed), f"{command}\n{printed}\n\nhas no line: {line}"

    def do(self, command: str) -> Ran:
        if assigned := KEY.match(command):
            ran = self.do(assigned[2])
            self.environ[assigned[1]] = ran.out.strip()
            self.sha256 = re.findall('sha256: "(.+)"', ran.err)[0]
            return ran
        words = shlex.split(Template(command).safe_substitute(self.environ), comments=True)
        if words[:2] == ["pallas-gateway", "serve"]:
            self.gateways.append(self.stack.enter_context(started(words[1:], self.folder, environ=self.environ)))
            self.gateways[-1].wait_for("Try:")
            return Ran(0, self.gateways[-1].out, "")
        if words[0] == "cd":
            self.folder = (self.folder / words[1]).resolve()
            return Ran(0, "", "")
        if words[0] == "pallas-gateway":
            with started(words[1:], self.folder, environ=self.environ) as program:
                return program.end(READY_SECONDS)
        if words[:2] == ["curl", "-s"]:
            headers = dict(one.split(": ") for one in words[4:])
            answer = httpx.get(f"http://{words[2]}", headers=headers, trust_env=False)
            return Ran(0 if answer.is_success else 22, answer.text, "")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        environ = {**kept, **self.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", command.replace("make ", "make -n ")],  # noqa: S607
            cwd=ROOT if words[0] == "make" else self.folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if LOGGED in command:
            self.gateways[-1].wait_for(command.partition(LOGGED)[2])
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader who has done what stands above the first path, but for `make setup`."""
    assert STEP.findall(BLOCK.findall(BEGINNING)[0][1])[-1][0] == "cp ../agents.example.yaml agents.yaml"
    unset = dict.fromkeys(("PALLAS_EXAMPLE_MODEL", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "PALLAS_BEARER"), "")
    with reserved_port() as port, ExitStack() as stack:
        text = (ROOT / "agents.example.yaml").read_text().replace("24200", str(port))
        (tmp_path / "agents.yaml").write_text(text)
        set_ = {"EDITOR": "sed -i s/wise/brief/", "PALLAS_EXAMPLE_PYTHON": sys.executable}
        yield Reader(tmp_path, port, {**unset, **set_}, stack)


def test_there_is_a_path_for_each_reader() -> None:
    assert list(SECTIONS) == ["An operator", "An owner of agents", "An author of a client", "A developer"]


def test_an_operator_limits_a_key_and_finds_the_refusal(reader: Reader) -> None:
    assert reader.follow("An operator") == 11


def test_an_owner_makes_changes_and_gives_an_agent(reader: Reader) -> None:
    assert reader.follow("An owner of agents") == 9


def test_a_client_follows_a_call_answers_questions_and_reads_an_error(reader: Reader) -> None:
    assert reader.follow("An author of a client") == 3


def test_a_developer_changes_a_test_with_the_code(reader: Reader) -> None:
    """In a copy. What `make` would run is only printed, but for the choice of `make quick`."""
    for name in ("pallas_gateway", "tests"):
        left_out = shutil.ignore_patterns("node_modules", ".venv", "vendor", "e2e", "repairs", "threads", "console")
        shutil.copytree(ROOT / name, reader.folder / name, ignore=left_out if name == "tests" else None)
    shutil.copy(ROOT / "pyproject.toml", reader.folder)
    subprocess.run(["git", "init", "-q"], cwd=reader.folder, check=True)  # noqa: S607
    reader.environ |= {"PYTHONPATH": str(reader.folder), "PYTHONDONTWRITEBYTECODE": ""}
    reader.folder /= "hour"
    reader.folder.mkdir()
    assert reader.follow("A developer") == 8
    assert "tests/example/test_demo_model.py" in files_for([CHANGED])[1]
    assert CHANGED in SECTIONS["A developer"]
