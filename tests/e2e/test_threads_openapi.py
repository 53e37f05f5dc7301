"""The API of threads against its own OpenAPI document: whatever is sent, what comes back is what is documented."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import httpx
from jsonschema import Draft202012Validator

from tests.support.gateway import Agent, running, write_project
from tests.support.scripted_llm import say, scripted_llm

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 100
CONFIGURATION = """
[parameters]
"path.name" = "solo"
"path.id" = "{thread_id}"
"""
PARAMETERS = ["temperature", "top_p", "top_k", "max_tokens", "stop", "seed", "tool_choice"]
OPTIONS = ("--generation-deterministic", "--seed", "1", "--max-examples", "4", "--no-color", "--request-timeout", "10")


async def test_schemathesis_finds_nothing_that_the_document_does_not_say(tmp_path: Path) -> None:
    async with scripted_llm(lambda _: say("fine")) as llm:
        solo = Agent(settings={"model_capabilities": {"vision": True}, "caller_params": PARAMETERS})
        project = write_project(
            tmp_path / "project", {"solo": solo}, llm_url=llm.base_url, gateway={"database": "sqlite:///threads.db"}
        )
        async with running(project) as served:
            api = f"{served.base_url}/api/v1"
            async with httpx.AsyncClient(base_url=api, trust_env=False) as http:
                document = (await http.get("/openapi.json")).raise_for_status().json()
                thread_id = (await http.post("/agents/solo/threads")).raise_for_status().json()["id"]
            settings = tmp_path / "schemathesis.toml"
            settings.write_text(CONFIGURATION.format(thread_id=thread_id))
            command = ["-m", "schemathesis.cli", "--config-file", str(settings), "run", f"{api}/openapi.json", *OPTIONS]
            program = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                cwd=tmp_path,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            async with asyncio.timeout(SECONDS):
                told, _ = await program.communicate()
    assert program.returncode == 0, told.decode()
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
