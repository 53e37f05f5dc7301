"""The program and the schema of docs/use/cases.md, as they stand there."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema

from tests.support.gateway import Agent, gateway_and_model
from tests.support.scripted_llm import Reply, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.scripted_llm import LlmRequest, Turn

DOCUMENT = (Path(__file__).parents[2] / "docs" / "use" / "cases.md").read_text(encoding="utf-8")
[PROGRAM] = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
[SCHEMA] = map(json.loads, re.findall(r"^```json\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL))
IMAGE = {
    "mime_type": "image/png",
    "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
}
SAID = [{"role": "user", "content": "I am Ada."}, {"role": "assistant", "content": "Hello Ada."}]


def case(number: int, message: str, output: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"c/{number}", "agent": "echo", "url": "", "model": None, "params": {}, "history": [],
        "message": message, "images": [], "output": output, "output_images": 0, "tools": [], "rating": "good",
        "note": "", "asked_at": "2026-11-24T10:00:00.000Z", "rated_at": "2026-11-24T10:01:00.000Z", **more,
    }  # fmt: skip


def script(request: LlmRequest) -> Turn:
    if request.last_user_text == "fail":
        return Reply(400, b'{"error": {"message": "no"}}', "application/json")
    return say(f"{' '.join(request.user_texts)} at {request.body.get('temperature')}")


async def test_the_program_repeats_each_case_with_its_history_parameters_and_images(tmp_path: Path) -> None:
    settings = {"caller_params": ["temperature"], "model_capabilities": {"vision": True}}
    async with gateway_and_model(tmp_path / "project", {"echo": Agent(settings=settings)}, script) as (served, llm):
        cases = [
            case(1, "Who?", "I am Ada. Who? at 0.5", history=SAID, params={"temperature": 0.5}),
            case(2, "Look", "Nothing.", rating="bad", images=[IMAGE], url=served.url("echo")),
            case(3, "fail", "fine"),
        ]
        document = {"format": "pallas-gateway-cases", "version": 1, "cases": cases}
        jsonschema.validate(document, SCHEMA)
        (tmp_path / "cases.json").write_text(json.dumps(document))
        (tmp_path / "repeat.py").write_text(PROGRAM)
        lines = (await _ran(tmp_path, served.url("echo"))).splitlines()
        sent: list[Mapping[str, Any]] = [request.body for request in llm.requests]
    assert lines[0] == "c/1  rated good, now same: 'I am Ada. Who? at 0.5'"
    assert lines[1] == "c/2  rated bad, now different: 'Look at None'"
    assert lines[2].startswith("c/3  rated good, now different: '(failed: ")
    assert IMAGE["data"] in json.dumps(sent[1])


async def _ran(folder: Path, url: str) -> str:
    command = [sys.executable, "repeat.py", "cases.json", url]
    program = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        told, _ = await program.communicate()
    assert program.returncode == 0
    return told.decode()
