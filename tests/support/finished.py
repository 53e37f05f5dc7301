"""Commands in processes of their own, beside the gateway that the test serves."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from tests.support.commands import READY_SECONDS, Ran, started


async def finished(
    *arguments: str, folder: Path, environ: Mapping[str, str] | None = None, given: str | None = None
) -> Ran:
    """Run `pallas-gateway` to its end, with `given` as its standard input."""
    with started(arguments, folder, environ=environ, given=given) as program:
        return await asyncio.to_thread(program.end, READY_SECONDS)
