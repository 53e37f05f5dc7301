"""`pallas-gateway apply`: put agent definitions into `agents.yaml`; the rest of the file keeps every byte."""

from __future__ import annotations

import codecs
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from pallas_gateway.cli.project import ConfigOption
from pallas_gateway.client.address import gateway_url
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.gateway_client import BearerOption
from pallas_gateway.client.output import problem, result
from pallas_gateway.config.loading.environment import config_path, load_dotenv_file
from pallas_gateway.config.loading.loader import MISSING, check_deployment
from pallas_gateway.config.problems import ConfigurationError
from pallas_gateway.config.yaml.definitions import (
    DeclaredDefinitions,
    defined_in,
    left_out_lines,
    same,
)
from pallas_gateway.config.yaml.editing import with_agents

NOTHING = "nothing was written"

ApplyUrlOption = Annotated[
    str | None, typer.Option("--url", help="Base URL of a gateway: change the agents of its database instead.")
]


def apply(
    file: Annotated[str, typer.Option("--file", "-f", help="Definitions as `export` prints them; - is stdin.")],
    config: ConfigOption = None,
    url: ApplyUrlOption = None,
    bearer: BearerOption = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show and check the changes, write nothing.")] = False,
) -> None:
    """Add and change agents of agents.yaml, or of a gateway's database, as in FILE, after showing a diff."""
    from pallas_gateway.client.agents.definitions import STDIN, definitions_of, is_wanted, show_difference, text_of  # noqa: PLC0415  other commands do not need it

    load_dotenv_file(Path.cwd(), os.environ)
    wanted = definitions_of(file)
    if url is not None:
        _apply_to_gateway(url, bearer, wanted, config, can_ask=file != STDIN, yes=yes, dry_run=dry_run)
        return
    path = config_path(os.environ, config)
    content, before = text_of(path, MISSING)
    present = defined_in(before, str(path)).agents
    agents = wanted.completed(present)
    after = with_agents(before, str(path), agents)
    for line in left_out_lines(wanted):
        problem(line)
    if after == before:
        result(f"{path}: nothing changes")
        return
    _check(after, path, wanted)
    show_difference(before, after, str(path))
    if dry_run:
        problem(f"{NOTHING}: --dry-run")
        return
    if not yes and not is_wanted(f"Write {path}?", can_ask=file != STDIN, nothing=NOTHING, yes_does="writes it"):
        raise typer.Exit(1)
    _write(path, content, after)
    result(f"{path}: {_summary(present, agents)}")


def _apply_to_gateway(
    url: str,
    bearer: str | None,
    wanted: DeclaredDefinitions,
    config: Path | None,
    *,
    can_ask: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    if config is not None:
        raise UsageError("--url and --config both say where the agents are; give one of them.")
    from pallas_gateway.client.agents.agents_api import AgentsClient  # noqa: PLC0415  as the next line
    from pallas_gateway.client.agents.applying import apply_to  # noqa: PLC0415  only for a gateway

    if not apply_to(AgentsClient(gateway_url(url), bearer), wanted, can_ask=can_ask, yes=yes, dry_run=dry_run):
        raise typer.Exit(1)


def _check(text: str, path: Path, wanted: DeclaredDefinitions) -> None:
    """Raise the problems that the resulting file would have; those of applied agents at their places in `wanted`."""
    try:
        check_deployment(text, path, environ=os.environ)
    except ConfigurationError as error:
        problem(f"{NOTHING}; this would be wrong:")
        raise ConfigurationError([wanted.mended(one) for one in error.problems]) from error


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
