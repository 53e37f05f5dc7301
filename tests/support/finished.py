"""Commands in processes of their own, beside the gateway that the test serves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.commands import READY_SECONDS, started

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.commands import Ran


async def finished(
    *arguments: str, folder: Path, environ: Mapping[str, str] | None = None, given: str | None = None
) -> Ran:
    """Run `pallas-gateway` to its end, with `given` as its standard input."""
    with started(arguments, folder, environ=environ, given=given) as program:
        return await asyncio.to_thread(program.end, READY_SECONDS)
