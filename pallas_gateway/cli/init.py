"""`pallas-gateway init`: a project that serves at once, without a key."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from pallas_gateway.cli.output import result
from pallas_gateway.cli.usage import UsageError

_AGENTS_YAML = """\
# What pallas-gateway serves from this folder. docs/configuration.md of the gateway has every key;
# `pallas-gateway check` reports mistakes in this file; `pallas-gateway schema` prints its JSON Schema for editors.

name: {name}
version: 0.1.0

agents:
  assistant:
    instruction: |            # or instruction_file: prompts/assistant.md
      You help with this project. Answer briefly.
    title: Assistant
    description: Repeats the message, until it has a model.
    # servers: [notes]        # MCP servers, by their names in fastagent.config.yaml
    # tools: [notes__search]  # all it may use of them; without it: everything
    # agents: [reviewer]      # other agents of this file that it may call

  # An agent written in Python, as a module with `fast = FastAgent(…)`:
  # reviewer:
  #   module: agents.reviewer

# gateway:
#   port: 24200
#   public_url: https://agents.example.com
#   auth:                       # `pallas-gateway token new NAME` makes a key and its entry
#     tokens: []
"""

_FASTAGENT = """\
# fast-agent's own file: the model, and the MCP servers that agents may use.

# `passthrough` repeats the message and needs no key. With a key in .env, name a model instead, such as
#   anthropic.claude-sonnet-4-5   (ANTHROPIC_API_KEY)
#   openai.gpt-5-mini             (OPENAI_API_KEY)
# docs/providers.md of the gateway has those of other providers, and of a server of your own.
default_model: passthrough

# mcp:
#   servers:
#     notes:
#       url: https://notes.example.com/mcp
#       headers:
#         Authorization: Bearer ${NOTES_TOKEN}
"""

_ENV = """\
# Copy to .env; the gateway reads it from the working directory. It stays out of git.
# ANTHROPIC_API_KEY=
# OPENAI_API_KEY=
# NOTES_TOKEN=
"""

_GITIGNORE = """\
.env
*.secrets.yaml
__pycache__/
.venv/
.fast-agent/
"""

_FILES = {
    "agents.yaml": _AGENTS_YAML,
    "fastagent.config.yaml": _FASTAGENT,
    ".env.example": _ENV,
    ".gitignore": _GITIGNORE,
}


def init(
    directory: Annotated[Path, typer.Argument(help="The folder; created if it does not exist.")] = Path(),
    name: Annotated[str | None, typer.Option(help="The project's name; default: the folder's.")] = None,
) -> None:
    """Create a project with one agent that runs without a key; existing files are never changed."""
    there = [file for file in _FILES if (directory / file).exists()]
    if there:
        raise UsageError(f"{directory / there[0]} is there already, nothing was written. Choose an empty folder.")
    project = name or re.sub(r"[^A-Za-z0-9.-]+", "-", directory.resolve().name).strip("-.") or "my-project"
    if not re.fullmatch(r"[^\s:#{}\[\]'\"]+", project):
        raise UsageError(f"--name '{project}' may hold no spaces, quotes, brackets, ':' or '#'.")
    _write(directory, project)
    place = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    result(f"{len(_FILES)} files written for '{project}'. Next:\n\n  {place}pallas-gateway serve")


def _write(directory: Path, project: str) -> None:
    try:
        for file, text in _FILES.items():
            path = directory / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("{name}", project), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}.") from error
