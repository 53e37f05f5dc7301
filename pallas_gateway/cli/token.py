"""`pallas-gateway token new`: make a static key; only its hash is kept, in `agents.yaml`."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from pallas_gateway.client.output import problem, result
from pallas_gateway.client.usage import UsageError
from pallas_gateway.config.model.auth import StaticKeySettings
from pallas_gateway.identity.static_keys import hash_of, new_key

token = typer.Typer(help="Keys for callers.", no_args_is_help=True)


@token.callback()
def _token() -> None:
    """Keys for callers."""


@token.command()
def new(
    name: Annotated[str, typer.Argument(help="Who will hold the key; shown in logs.")],
    grant: Annotated[
        list[str] | None,
        typer.Option(help="What it may: run:agents[:NAME], view:agents[:NAME], … (docs/security.md); may be repeated."),
    ] = None,
) -> None:
    """Make a key: it is printed once, on stdout; its entry for agents.yaml follows on stderr."""
    key = new_key()
    entry = _entry(name, key, grant or ["run:agents"])
    result(key)
    if not grant:
        problem("Without --grant the key may run EVERY agent.")
    problem(
        "Keep the key, it is not shown again. Its entry in agents.yaml:\n\n"
        f'gateway:\n  auth:\n    tokens:\n      - name: "{entry.name}"\n'
        f'        sha256: "{entry.sha256}"\n        grants: [{", ".join(entry.grants)}]'
    )


def _entry(name: str, key: str, grants: list[str]) -> StaticKeySettings:
    document = {"name": name, "sha256": hash_of(key), "grants": grants}
    try:
        return TypeAdapter(StaticKeySettings).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = first.get("ctx", {}).get("error", first["msg"])
        raise UsageError(f"{'NAME' if first['loc'][0] == 'name' else '--grant'}: {reason}.") from error
