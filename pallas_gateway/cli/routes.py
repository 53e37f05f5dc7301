"""`pallas-gateway routes`: the table of all routes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from pallas_gateway.client.output import problem, result, table
from pallas_gateway.config.loading.loader import INSTALL_DATABASE


def routes(*, as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False) -> None:
    """Show all routes of a gateway: what each does, who may use it, and the setting that switches it on."""
    from pallas_gateway.composition.features import FEATURES  # noqa: PLC0415  other commands need no web app
    from pallas_gateway.doors.http.routes import of_api, others, plain  # noqa: PLC0415

    try:
        of_programs = of_api(FEATURES)
    except ModuleNotFoundError:
        of_programs = of_api([one for one in FEATURES if not one.needs_database])
        problem(f"Without the routes of agents and threads, whose libraries are an extra: {INSTALL_DATABASE}")
    found = [*of_programs, *others(FEATURES)]
    if as_json:
        result(json.dumps([{key: plain(text) for key, text in asdict(one).items()} for one in found], indent=2))
        return
    rows = [(one.method, one.path, plain(one.requires), plain(one.setting), plain(one.does)) for one in found]
    table("METHOD", "PATH", "REQUIRES", "SETTING", "DOES", rows=rows)
