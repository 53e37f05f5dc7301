"""The commands of docs/use/agents-as-data.md run as they stand there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.agents_api import agents_api

if TYPE_CHECKING:
    from collections.abc import Sequence

DOCUMENT = Path(__file__).parents[2] / "docs" / "use" / "agents-as-data.md"
[BLOCK] = [
    one for one in re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL) if "curl" in one
]
COMMANDS: Sequence[str] = BLOCK.replace("\\\n", "").splitlines()
STATUS = "-s -o /dev/null -w '%{http_code}'"


async def test_each_command_is_answered_as_the_document_says(tmp_path: Path) -> None:
    statuses = []
    async with agents_api(tmp_path, auth=False) as api:
        place = api.served.base_url.removeprefix("http://")
        for command in COMMANDS:
            here = command.replace("localhost:24200", place).replace("openai.gpt-5-mini", "passthrough")
            program = await asyncio.create_subprocess_shell(
                here.replace("curl ", f"curl {STATUS} ", 1), stdout=asyncio.subprocess.PIPE
            )
            told, _ = await program.communicate()
            statuses.append(int(told))
    assert statuses == [201, 200, 200, 200, 200, 201, 204]
