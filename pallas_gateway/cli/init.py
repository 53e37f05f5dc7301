"""`pallas-gateway init`: a project that serves at once, without a key."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.output import result

_TEMPLATES = Path(__file__).with_name("new_project")
_FILES = {
    "agents.yaml": "agents.yaml",
    "fastagent.config.yaml": "fastagent.config.yaml",
    ".env.example": "env.example",
    ".gitignore": "gitignore",
}
"""The files of a project, and those that they are made from."""


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
        directory.mkdir(parents=True, exist_ok=True)
        for file, template in _FILES.items():
            text = (_TEMPLATES / template).read_text(encoding="utf-8")
            (directory / file).write_text(text.replace("{name}", project), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}.") from error
