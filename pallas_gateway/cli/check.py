"""`pallas-gateway check`: load everything `serve` would load, bind nothing, report every problem at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from pallas_gateway.cli.project import ConfigOption, make_ready, read_project
from pallas_gateway.client.output import problem, result
from pallas_gateway.config.loading.loader import Overrides


def check(
    config: ConfigOption = None,
    *,
    per_port: Annotated[bool, typer.Option("--per-port", help="Check for `serve --per-port` and `pallas`.")] = False,
    online: Annotated[
        bool,
        typer.Option(
            "--online",
            help="Also check that downstreams and the database answer, `tools` match, keys work and models exist.",
        ),
    ] = False,
) -> None:
    """Load everything that serve loads and print all problems; exit 0 or 2. Warnings do not count."""
    from pallas_gateway.cli.check_project import Findings, inspect  # noqa: PLC0415  other commands need none of it

    loaded = read_project(config, Overrides(per_port=per_port or None))
    configuration, found = loaded.configuration, Findings()
    if configuration is not None:
        make_ready(configuration)
        found = inspect(configuration, loaded.problems, online=online)
    problems = [*loaded.problems, *found.problems]
    marked = [replace(warning, message=f"warning: {warning.message}") for warning in found.warnings]
    for one in sorted([*problems, *marked], key=lambda one: (one.file, one.line or 0)):
        problem(str(one))
    if configuration is None or problems:
        raise typer.Exit(2)
    names = list(configuration.deployment.agents)
    result(f"{configuration.path} is fine: {len(names)} agent{'s'[: len(names) > 1]} ({', '.join(names)})")
