"""Texts by which other programs connect to an agent: `features/console/static/clients.json`, filled in.

The console (`clients.js` beside it) and `pallas-gateway connect` show the same texts. `make docs` writes them to
docs/use/connect.md.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

_SOURCE = Path(__file__).parents[1] / "features" / "console" / "static" / "clients.json"
_IN_URLS = "%/:?#[]@!$&()*+,;=~"
ALL_AGENTS_NAME = "pallas"
"""The name by which programs know the server of all agents."""


@dataclass(frozen=True, slots=True)
class Target:
    """The MCP server to connect to.

    Attributes:
        name: of the server in the program's configuration; for OpenAI clients the model.
        url: its MCP endpoint.
        base: the gateway's base URL, without a trailing slash.
        tool: its message tool.
        needs_token: callers need a token.
    """

    name: str
    url: str
    base: str
    tool: str = "send_message"
    needs_token: bool = False


@dataclass(frozen=True, slots=True)
class ConnectedProgram:
    """One program, or library, and how it is connected.

    Attributes:
        agents_only: it knows agents and not the server of all of them.
        signs_in: it signs people in by itself where a gateway requires it, given its URL alone.
    """

    id: str
    title: str
    how: str
    language: str
    text: str
    with_token: str
    link: dict[str, str] | None = None
    agents_only: bool = False
    signs_in: bool = False

    @property
    def calls_a_tool(self) -> bool:
        """True if the text names the message tool."""
        return "<TOOL>" in self.text

    def filled(self, target: Target) -> str:
        """Return the text for one server."""
        return _filled(self.with_token if target.needs_token else self.text, target)

    def link_to(self, target: Target) -> str | None:
        """Return the link that opens the program with the server, None if it has none or the server needs a token."""
        if self.link is None or target.needs_token:
            return None
        config = _filled(self.link["config"], target)
        encoded = base64.b64encode(config.encode()).decode()
        link = (
            self.link["url"].replace("<BASE64>", quote(encoded, safe="")).replace("<ENCODED>", quote(config, safe=""))
        )
        return _filled(link, target)


@cache
def programs() -> tuple[ConnectedProgram, ...]:
    """Return all programs, in the order in which they are shown."""
    entries: list[dict[str, Any]] = json.loads(_SOURCE.read_text(encoding="utf-8"))
    texts = ("text", "with_token")
    return tuple(ConnectedProgram(**{**one, **{key: "\n".join(one[key]) for key in texts}}) for one in entries)


def _filled(text: str, target: Target) -> str:
    values = {
        "<NAME>": _word(target.name),
        "<TOOL>": _word(target.tool),
        # Without quotes and backslashes: the texts are commands and programs.
        "<URL>": quote(target.url, safe=_IN_URLS),
        "<BASE>": quote(target.base, safe=_IN_URLS),
    }
    return re.sub("<(?:NAME|TOOL|URL|BASE)>", lambda match: values[match[0]], text)


def _word(name: str) -> str:
    """A name as one word of a command, which is no option."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name).lstrip("-") or "agent"


def markdown() -> str:
    """Return docs/use/connect.md."""
    agent = Target("research", "http://localhost:24200/agents/research/mcp", "http://localhost:24200")
    remote = "https://agents.example.com"
    guarded = Target("research", f"{remote}/agents/research/mcp", remote, needs_token=True)
    sections = [_section(program, agent, guarded) for program in programs()]
    titles = [program.title for program in programs() if program.signs_in]
    names = " and ".join([", ".join(titles[:-1]), titles[-1]])
    return "\n".join([_INTRODUCTION.format(signing_in=names), *sections])


def _section(program: ConnectedProgram, agent: Target, guarded: Target) -> str:
    texts = [program.filled(target) for target in (agent, guarded)]
    blocks = "\nWith a token:\n\n".join(f"```{program.language}\n{text}\n```\n" for text in texts)
    return f"## {program.title}\n\n{program.how}\n\n{blocks}"


_INTRODUCTION = """\
# Connecting programs

<!-- Made by `make docs` from features/console/static/clients.json. -->

Texts that connect a program to an agent. The [console](console.md) and the command `pallas-gateway connect`
show them with the URLs of a running gateway. Without an argument, the command lists the programs; `pallas-gateway
connect cursor research` prints one text. Without an agent, where all agents are on one port, the text is for the server
of [all agents](clients.md#all-agents-behind-one-url).

Where people [sign in](sign-in.md), {signing_in} need no token: take the first text, and the program opens a page on
which you sign in (OAuth, with the metadata that the gateway names in its refusal). The authorization server must let
programs register themselves, or know them. All other programs need a key.
"""
