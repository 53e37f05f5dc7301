"""`pallas-gateway apply`: put agent definitions into `agents.yaml`; the rest of the file keeps every byte."""

from __future__ import annotations

import codecs
import difflib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from pallas_gateway.cli.export import text_of
from pallas_gateway.cli.project import ConfigOption
from pallas_gateway.client.output import problem, result
from pallas_gateway.client.usage import UsageError
from pallas_gateway.config.loading.environment import config_path, load_dotenv_file
from pallas_gateway.config.loading.loader import check_deployment
from pallas_gateway.config.problems import ConfigurationError
from pallas_gateway.config.yaml.definitions import (
    Definitions,
    defined_in,
    left_out_lines,
    read_definitions,
    same,
)
from pallas_gateway.config.yaml.editing import with_agents

if TYPE_CHECKING:
    from collections.abc import Mapping

STDIN = "-"
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def apply(
    file: Annotated[str, typer.Option("--file", "-f", help="Definitions as `export` prints them; - is stdin.")],
    config: ConfigOption = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show and check the changes, write nothing.")] = False,
) -> None:
    """Add and change agents of agents.yaml as in FILE, after showing a diff; comments and formatting stay."""
    load_dotenv_file(Path.cwd(), os.environ)
    wanted = _wanted(file)
    path = config_path(os.environ, config)
    content, before = text_of(path)
    present = defined_in(before, str(path)).agents
    agents = wanted.completed(present)
    after = with_agents(before, str(path), agents)
    for line in left_out_lines(wanted):
        problem(line)
    if after == before:
        result(f"{path}: nothing changes")
        return
    _check(after, path, wanted)
    _show(before, after, path)
    if dry_run:
        problem("nothing was written: --dry-run")
        return
    if not yes and not _is_wanted(path, file):
        raise typer.Exit(1)
    _write(path, content, after)
    result(f"{path}: {_summary(present, agents)}")


def _wanted(file: str) -> Definitions:
    if file != STDIN:
        return read_definitions(text_of(Path(file), "no such file; -f names a file as `export` prints it")[1], file)
    try:
        return read_definitions(sys.stdin.buffer.read().decode("utf-8-sig"), "stdin")
    except UnicodeDecodeError:
        raise UsageError("stdin is not UTF-8 text.") from None


def _check(text: str, path: Path, wanted: Definitions) -> None:
    """Raise the problems that the resulting file would have; those of applied agents at their places in `wanted`."""
    try:
        check_deployment(text, path, environ=os.environ)
    except ConfigurationError as error:
        problem("nothing was written; this would be wrong:")
        raise ConfigurationError([wanted.mended(one) for one in error.problems]) from error


def _show(before: str, after: str, path: Path) -> None:
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    lines = (before.splitlines(), after.splitlines())
    for line in difflib.unified_diff(*lines, f"{path}", f"{path} (applied)", lineterm=""):
        console.print(Text(line, style=_STYLES.get(line[0], "") if line[:3] not in ("+++", "---") else "bold"))


def _is_wanted(path: Path, file: str) -> bool:
    if file == STDIN or not sys.stdin.isatty():
        problem("nothing was written; --yes writes it")
        return False
    if typer.confirm(f"Write {path}?", err=True):
        return True
    problem("nothing was written")
    return False


def _write(path: Path, before: bytes, text: str) -> None:
    """Replace the file in one step, with the same permissions; a symbolic link is followed."""
    real = path.resolve()
    after = (codecs.BOM_UTF8 if before.startswith(codecs.BOM_UTF8) else b"") + text.encode()
    try:
        number, temporary = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
        try:
            with os.fdopen(number, "wb") as written:
                written.write(after)
                written.flush()
                _take_over_permissions(real, written.fileno())
                os.fsync(written.fileno())
            if real.read_bytes() != before:
                raise UsageError(f"{path} was changed meanwhile; nothing was written. Apply again.")
            Path(temporary).replace(real)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; nothing was changed.") from error


def _take_over_permissions(of: Path, number: int) -> None:
    status = of.stat()
    with suppress(PermissionError):  # only root may change the owner
        os.fchown(number, status.st_uid, status.st_gid)
    os.fchmod(number, status.st_mode & 0o7777)


def _summary(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    added = [name for name in wanted if name not in before]
    changed = [name for name, agent in wanted.items() if name in before and not same(before[name], agent)]
    groups = [("added", added), ("changed", changed)]
    return "; ".join(f"{word} {', '.join(names)}" for word, names in groups if names)
