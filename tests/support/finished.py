"""Commands in processes of their own, beside the gateway that the test serves."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from tests.support.commands import GATEWAY, Ran

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


async def finished(
    *arguments: str, folder: Path, environ: Mapping[str, str] | None = None, given: str | None = None
) -> Ran:
    """Run `pallas-gateway` to its end, with `given` as its standard input."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *GATEWAY,
        *arguments,
        cwd=folder,
        env={**os.environ, "PALLAS_LOG_FILE": "", "COLUMNS": "200", **(environ or {})},
        stdin=asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate(None if given is None else given.encode())
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())
