"""`pallas-gateway token`: make a static key, whose hash alone is kept in `agents.yaml`, and list the keys."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from pallas_gateway.cli.project import ConfigOption, read_project
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.output import problem, result, table
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.config.model.auth import StaticKeySettings
from pallas_gateway.identity.static_keys import hash_of, new_key

token = typer.Typer(help="Keys for callers.", no_args_is_help=True)


@token.command()
def new(
    name: Annotated[str, typer.Argument(help="Who will hold the key; shown in logs.")],
    grant: Annotated[
        list[str] | None,
        typer.Option(
            help="What it may: run:agents[:NAME], edit:agents[:NAME], … (docs/operate/security.md); may be repeated."
        ),
    ] = None,
    not_after: Annotated[
        str | None,
        typer.Option(
            help="The last day (UTC), such as 2027-01-31, or moment with a zone, such as 2027-01-31T18:00:00Z."
        ),
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, max=36_500, help="It expires after so many days.")] = None,
) -> None:
    """Make a key: it is printed once, on stdout; its entry for agents.yaml follows on stderr."""
    if days is not None:
        if not_after is not None:
            raise UsageError("Give --not-after or --days, not both.")
        not_after = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds").replace("+00:00", "Z")
    key = new_key()
    entry = _entry(name, key, grant or ["run:agents"], not_after)
    until = f'\n        not_after: "{not_after}"' if not_after is not None else ""
    result(key)
    if not grant:
        problem("Without --grant the key may run EVERY agent.")
    problem(
        "Keep the key, it is not shown again. Its entry in agents.yaml:\n\n"
        f'gateway:\n  auth:\n    tokens:\n      - name: "{entry.name}"\n'
        f'        sha256: "{entry.sha256[0]}"\n        grants: [{", ".join(entry.grants)}]{until}'
    )


@token.command("list")
def list_(
    config: ConfigOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the keys of agents.yaml: names, grants, and when they expire."""
    configuration, now = read_project(config, Overrides()).usable(), datetime.now(UTC)
    auth = configuration.deployment.gateway.auth
    keys = auth.tokens if auth is not None else ()
    if as_json:
        result(json.dumps([_document(key, now) for key in keys], indent=2))
    elif not keys:
        problem("agents.yaml has no keys; `pallas-gateway token new NAME` makes one.")
    else:
        rows = [(key.name, " ".join(key.grants) or "(no grants)", _end(key, now)) for key in keys]
        table("KEY", "GRANTS", "EXPIRES", rows=rows)


def _document(key: StaticKeySettings, now: datetime) -> dict[str, object]:
    return {
        "name": key.name,
        "grants": list(key.grants),
        "notAfter": _utc(key.not_after) if key.not_after is not None else None,
        "expired": key.not_after is not None and key.not_after < now,
    }


def _end(key: StaticKeySettings, now: datetime) -> str:
    if key.not_after is None:
        return "never"
    return f"{_utc(key.not_after)}{' (expired)' if key.not_after < now else ''}"


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _entry(name: str, key: str, grants: list[str], not_after: str | None) -> StaticKeySettings:
    document = {"name": name, "sha256": hash_of(key), "grants": grants, "not_after": not_after}
    try:
        return TypeAdapter(StaticKeySettings).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = first.get("ctx", {}).get("error", first["msg"])
        option = {"name": "NAME", "not_after": "--not-after"}.get(str(first["loc"][0]), "--grant")
        raise UsageError(f"{option}: {reason}.") from error
