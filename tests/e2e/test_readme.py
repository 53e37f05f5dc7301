"""The README: its project is served; the programs and the module of its next pages are run."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from tests.support.calling import ask
from tests.support.gateway import Agent, Project, running, write_project
from tests.support_programs import program

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


[MODULE] = blocks("docs/use/declared-agents.md", "python")
PROGRAM, WITH_SDK_1 = blocks("docs/use/clients.md", "python")


async def test_the_project_of_the_readme_is_served(tmp_path: Path) -> None:
    for text in blocks("README.md", "yaml")[:2]:
        (tmp_path / text.split()[1]).write_text(text)
    project = Project(tmp_path, "no_package")
    project.edit(lambda document: document.update(gateway={"port": 0}))
    async with running(project) as served:
        assert (await ask(served.url("assistant"))).text == "hello"


async def test_the_python_program_calls_the_agent(tmp_path: Path) -> None:
    await prints_the_answer(sys.executable, PROGRAM, tmp_path)


@pytest.mark.needs("python-sdk-1")
async def test_the_program_with_sdk_1_differs_in_its_connection_only(tmp_path: Path) -> None:
    _, begin, rest = PROGRAM.partition("async def show")
    show, _, _ = rest.partition("async def main")
    imports, _, main = WITH_SDK_1.partition("async def main")
    whole = f"import asyncio\n{imports}{begin}{show}async def main{main}\n\nasyncio.run(main())\n"
    await prints_the_answer(program("python-sdk-1"), whole, tmp_path)


async def prints_the_answer(python: str, program: str, folder: Path) -> None:
    async with running(write_project(folder, {"concierge": Agent()})) as served:
        text = program.replace("http://localhost:24200", served.base_url)
        process = await asyncio.create_subprocess_exec(
            python, "-c", text, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    assert out.decode().splitlines()[-1].startswith("What is a peer? {'input': ")


async def test_the_module_of_an_agent_is_served(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, {"jarvis": Agent(source=MODULE)})) as served:
        assert (await ask(served.url("jarvis"))).text == "hello"
