"""A program at a real pseudo-terminal, with keys to press and a screen to read."""

import asyncio
import os
import pty
import re
import signal
import subprocess
import termios
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pexpect
from pexpect.fdpexpect import fdspawn

from tests.support import forked

# Opening a terminal as the first of a session makes it the one that Ctrl-C comes from. (pexpect's own spawn forks a
# process that has threads.)
_AT_TERMINAL = (
    "import os, runpy, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); sys.argv[0] = 'pallas-gateway';"
    " runpy.run_module('pallas_gateway', run_name='__main__')"
)
_ENVIRONMENT = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": "200", "LINES": "50"}
_SIZE = (50, 200)
ENTER, ALT_ENTER, TAB = "\r", "\x1b\r", "\t"
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """A program and its terminal; it reads from where it has last found something."""

    def __init__(self, process: "subprocess.Popen[bytes] | forked.Forked", descriptor: int) -> None:
        self._process = process
        # A busy machine imports for long, once for each worker.
        self._screen = fdspawn(descriptor, encoding="utf-8", timeout=200)

    async def shows(self, text: str) -> str:
        """Wait until `text` appears after what was found before; what stood between."""
        await asyncio.to_thread(self._screen.expect, re.escape(text))
        return str(self._screen.before)

    async def shows_one_of(self, *texts: str) -> str:
        found: int = await asyncio.to_thread(self._screen.expect, [re.escape(text) for text in texts])
        return texts[found]

    async def press(self, *keys: str) -> None:
        await asyncio.to_thread(self._screen.send, "".join(keys))

    async def enter(self, line: str) -> None:
        await self.press(line, ENTER)

    async def talk(self, prompt: str, *exchanges: Sequence[str]) -> None:
        for line, *shown in exchanges:
            await self.shows(prompt)
            await self.enter(line)
            for text in shown:
                await self.shows(text)

    async def leave(self, prompt: str) -> None:
        """Press Ctrl-D at the prompt, which ends the program well."""
        await self.shows(prompt)
        await self.press(CTRL_D)
        assert await self.ends() == 0

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    async def ends(self) -> int:
        await asyncio.to_thread(self._screen.expect, pexpect.EOF)
        return await asyncio.to_thread(self._process.wait, 20)


@asynccontextmanager
async def at_terminal(
    arguments: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None
) -> AsyncGenerator[Terminal]:
    """Start `pallas-gateway` with a terminal of its own; it is killed when the block ends, if it has not ended."""
    ours, its = pty.openpty()
    try:
        termios.tcsetwinsize(its, _SIZE)
        process = forked.start(
            ["-c", _AT_TERMINAL, *arguments],
            folder,
            {**os.environ, **_ENVIRONMENT, **(environ or {})},
            (its, its, its),
            start_new_session=True,
        )
        os.close(its)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            await asyncio.to_thread(process.wait, 20)
    finally:
        os.close(ours)
