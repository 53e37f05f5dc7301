"""Claude Code at a terminal, with a scripted model behind it; it may reach nothing but this machine."""

import asyncio
import json
import os
import pty
import re
import termios
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

from tests.support.asgi import Receive, Scope, Send, respond_json
from tests.support.listener import serve_app
from tests.support.providers.anthropic import Anthropic
from tests.support.providers.provider import ScriptedProvider
from tests.support.scripted_llm import Script
from tests.support.waiting import WAIT_SECONDS, Changes, eventually, work_for
from tests.support_programs import program

TOOL, STOP, LOOK = "mcp__pallas__send_message", "TaskStop", "CronList"
_KEY = "sk-made-up"
_SIZE = (50, 150)
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;:?<>=]*[a-zA-Z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-B0-9]|[=>78])")
ENTER, DOWN, RIGHT, POINTER = "\r", "\x1b[B", "\x1b[C", "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"


class Model(ScriptedProvider):
    """Anthropic's API; what Claude Code asks beside messages is not there. Its own requests are not checked."""

    checks_requests = False

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_turn(scope):
            await respond_json(send, 404, {})
        else:
            await super().__call__(scope, receive, send)

    def has_read(self, text: str) -> bool:
        return any(text in json.dumps(request.body["messages"]) for request in self.requests)


class Screen:
    """What Claude Code has written so far, without escapes and spaces: it moves the cursor instead."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._written = b""
        self._changes = Changes()

    @property
    def text(self) -> str:
        return "".join(_ESCAPES.sub("", self._written.decode(errors="replace")).split())

    def read(self) -> None:
        """Take what is there; called by the loop."""
        try:
            self._written += os.read(self._descriptor, 65536)
        except OSError:  # it has ended
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self._changes.announce()

    def has(self, text: str) -> bool:
        return "".join(text.split()) in self.text

    async def shows(self, text: str) -> None:
        await self._changes.until(lambda: self.has(text), WAIT_SECONDS, what=f"{text!r} on the screen")

    def press(self, key: str) -> None:
        os.write(self._descriptor, key.encode())

    async def press_until(self, key: str, reached: Callable[[], object]) -> None:
        """Press a key until it has had its effect: one that comes while a form has just been drawn is ignored."""

        async def pressed() -> bool:
            self.press(key)
            await work_for(0.2)
            return bool(reached())

        await eventually(pressed, what=f"the effect of {key!r}")


@dataclass(frozen=True)
class ClaudeCode:
    """An installation with a home of its own, whose only MCP server is at `url`."""

    home: Path
    url: str
    model: Model

    def __post_init__(self) -> None:
        work = self.home / "work"
        work.mkdir(parents=True)
        known = {
            "hasCompletedOnboarding": True,
            "customApiKeyResponses": {"approved": [_KEY], "rejected": []},
            "projects": {str(work): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
        }
        (self.home / ".claude.json").write_text(json.dumps(known))
        servers = {"mcpServers": {"pallas": {"type": "http", "url": self.url}}}
        (self.home / "mcp.json").write_text(json.dumps(servers))

    async def _start(self, *arguments: str, **streams: Any) -> asyncio.subprocess.Process:
        nowhere = "http://127.0.0.1:1"
        environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "CLAUDE_CODE_TMPDIR": str(self.home),
            "TERM": "xterm-256color",
            "ANTHROPIC_BASE_URL": self.model.base_url,
            "ANTHROPIC_API_KEY": _KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
            "DISABLE_AUTOUPDATER": "1",
            "ENABLE_TOOL_SEARCH": "false",
            "HTTPS_PROXY": nowhere,
            "HTTP_PROXY": nowhere,
            "NO_PROXY": "127.0.0.1",
        }
        options = ("--mcp-config", "../mcp.json", "--strict-mcp-config", "--permission-mode", "default")
        return await asyncio.create_subprocess_exec(
            program("claude-code"),
            *(*arguments, *options, "--model", "sonnet", "--allowedTools", TOOL, STOP, LOOK),
            cwd=self.home / "work",
            env=environ,
            start_new_session=True,
            **streams,
        )

    async def print(self, prompt: str) -> str:
        """Run it without a terminal (`-p`); return what it prints."""
        process = await self._start("-p", prompt, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=PIPE)
        printed, complaint = await process.communicate()
        assert process.returncode == 0, (printed + complaint).decode()
        return printed.decode()

    @asynccontextmanager
    async def session(self, *arguments: str) -> AsyncIterator[Screen]:
        """Run it at a terminal until the block ends; then it is told to end."""
        ours, its = pty.openpty()
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            stack.callback(os.close, ours)
            termios.tcsetwinsize(its, _SIZE)
            process = await self._start(*arguments, stdin=its, stdout=its, stderr=its)
            os.close(its)
            screen = Screen(ours)
            loop.add_reader(ours, screen.read)
            stack.callback(loop.remove_reader, ours)
            try:
                yield screen
            except BaseException as error:
                error.add_note(f"The screen: {screen.text[-2000:]}")
                raise
            finally:
                process.terminate()
                await process.wait()


@asynccontextmanager
async def claude_code(home: Path, url: str, script: Script) -> AsyncGenerator[ClaudeCode]:
    """Claude Code with a server at `url` and a model that follows `script`."""
    model = Model(Anthropic(), script)
    async with serve_app(model) as listener:
        model.base_url = listener.base_url
        yield ClaudeCode(home, url, model)
    assert not model.surprises, model.surprises
