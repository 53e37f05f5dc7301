"""`/api/v1` against its own OpenAPI document: whatever is sent, what comes back is what is documented."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.gateway import Agent, running, write_project
from tests.support.scripted_llm import say, scripted_llm

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 240
CONFIGURATION = """
[parameters]
"path.name" = "solo"
"path.id" = "{thread_id}"

[checks.missing_required_header]
expected-statuses = [400, 401, 403, 404, 406, 409, 415, 422, 428]

[[operations]]
include-path-regex = "^/api/v1/agents(/[^/]+(/versions.*)?)?$"
parameters = {{ "path.name" = "made", "path.version" = 1 }}
checks.positive_data_acceptance.expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 412, 422]
checks.negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 412, 415, 422, 428]

[[operations]]
include-path = "/api/v1/agents/{{name}}/chat"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409, 422, "5xx"]

[[operations]]
include-path = "/api/v1/agents/{{name}}"
include-method = "DELETE"
parameters = {{ "path.name" = "deleted" }}
"""
"""Definitions have rules that a schema cannot express, such as what the operator has released; and a chat may be sent
the parameters of another agent, because the document has those of all."""
GATEWAY = {"database": "sqlite:///pallas.db", "agents_may_use": {"models": ["*"], "agents": ["*"]}}
MADE = {"instruction": "You are made.", "model": "passthrough"}
PARAMETERS = ["temperature", "top_p", "top_k", "max_tokens", "stop", "seed", "tool_choice"]
OPTIONS = ("--generation-deterministic", "--seed", "1", "--max-examples", "4", "--no-color", "--request-timeout", "10")


@pytest.mark.whole("e2e/test_threads.py::test_what_cannot_be_answered_is_refused_with_a_reason_and_counted")
async def test_schemathesis_finds_nothing_that_the_document_does_not_say(tmp_path: Path) -> None:
    async with scripted_llm(lambda _: say("fine")) as llm:
        solo = Agent(settings={"model_capabilities": {"vision": True, "documents": True}, "caller_params": PARAMETERS})
        project = write_project(tmp_path / "project", {"solo": solo}, llm_url=llm.base_url, gateway=GATEWAY)
        async with running(project) as served:
            api = f"{served.base_url}/api/v1"
            async with httpx.AsyncClient(base_url=api, trust_env=False) as http:
                for name in ("made", "deleted"):
                    (await http.post("/agents", json={**MADE, "name": name})).raise_for_status()
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
