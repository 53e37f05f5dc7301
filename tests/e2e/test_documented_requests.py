"""The requests that documents make with curl: they are sent by curl as they stand there, and are answered."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.support.agents_api import agents_api
from tests.support.documents import pages
from tests.support.gateway import Agent, running, write_project
from tests.support_programs import program

BLOCK = re.compile(r"^```(?:console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
GATEWAY, THREAD, QUESTION = re.compile(r"localhost:24200"), "5f0c…", "3f…"
ELSEWHERE = {
    "docs/first-hour.md": "tests/example/test_first_hour.py",
    "docs/use/connect.md": "tests/console/test_connect.py",
    "docs/use/agents-as-data.md": "below: each command has a status of its own",
}
REQUESTS = {
    name: blocks
    for name, text in pages().items()
    if name not in ELSEWHERE
    and (blocks := [one for one in BLOCK.findall(text) if "curl " in one and QUESTION not in one])
}
"""Blocks with requests, by document; the answer to a question of a call that runs is not among them."""


def test_there_are_requests_of_every_api() -> None:
    text = "".join(one for blocks in REQUESTS.values() for one in blocks)
    paths = ("/agents/concierge/mcp", "/v1/chat/completions", "/v1/responses", "/api/v1/threads/")
    assert all(path in text for path in paths)


@pytest.mark.needs("curl")
@pytest.mark.parametrize("document", REQUESTS)
async def test_the_requests_of_a_document_are_answered(document: str, tmp_path: Path) -> None:
    curl = program("curl")
    gateway = {"database": "sqlite:///threads.db", "openai_api": True}
    agents = {"concierge": Agent(), "echo": Agent()}
    thread = ""
    async with running(write_project(tmp_path, agents, gateway=gateway)) as served:
        for block in REQUESTS[document]:
            script = GATEWAY.sub(served.base_url.removeprefix("http://"), block).replace(THREAD, thread)
            script = f'set -eu\ncurl() {{ {curl} --silent --show-error --fail-with-body "$@"; echo; }}\n' + re.sub(
                r"^\$ ", "", script, flags=re.MULTILINE
            )
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            printed = (await process.communicate())[0].decode()
            assert (process.returncode, re.findall(r'"error": ?(?!null)', printed)) == (0, []), printed
            thread = thread or next(iter(re.findall(r'"threadId": ?"(\w+)"', printed)), "")


AS_DATA = "docs/use/agents-as-data.md"
[BY_HAND] = [one for one in BLOCK.findall(pages()[AS_DATA]) if "curl " in one]
STATUS = "-s -o /dev/null -w '%{http_code}'"


async def test_each_command_is_answered_as_the_document_says(tmp_path: Path) -> None:
    statuses = []
    async with agents_api(tmp_path, auth=False) as api:
        place = api.served.base_url.removeprefix("http://")
        for command in BY_HAND.replace("\\\n", "").splitlines():
            here = command.replace("localhost:24200", place).replace("openai.gpt-5-mini", "passthrough")
            program = await asyncio.create_subprocess_shell(
                here.replace("curl ", f"curl {STATUS} ", 1), stdout=asyncio.subprocess.PIPE
            )
            told, _ = await program.communicate()
            statuses.append(int(told))
    assert statuses == [201, 200, 200, 200, 200, 201, 204]
