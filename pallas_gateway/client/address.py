"""The gateway that a client command asks: `--url`, else `PALLAS_GATEWAY_URL`, agents.yaml, or the default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pallas_gateway.client.arguments import UsageError
from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.loading.environment import config_path, load_dotenv_file
from pallas_gateway.config.loading.error_messages import located, validated
from pallas_gateway.config.loading.fastagent_file import FastAgentFile
from pallas_gateway.config.model.deployment import Deployment
from pallas_gateway.config.yaml.source import FREE_PREFIX, read_document
from pallas_gateway.urls import for_this_machine

DEFAULT_URL = "http://localhost:24200"
URL_VARIABLE = "PALLAS_GATEWAY_URL"
_KEYS = ("host", "registry_port")
_GATEWAY_KEYS = ("host", "port", "public_url", "per_port", "tls")
_ANY_AGENT = {"agent": {"module": "agent"}}

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar=URL_VARIABLE,
        help=f"Base URL of the gateway; without it, that of agents.yaml in the working directory, else {DEFAULT_URL}.",
        show_default=False,
    ),
]


def gateway_url(option: str | None) -> str:
    """Return the base URL of the gateway to ask, without a trailing slash.

    Raises:
        UsageError: agents.yaml exists and the address cannot be read from it.
        ConfigurationError: `.env` cannot be read.
    """
    if option:
        return option.rstrip("/")
    environ = dict(os.environ)
    load_dotenv_file(Path.cwd(), environ)
    if named := environ.get(URL_VARIABLE):
        return named.rstrip("/")
    path = config_path(environ, None)
    return _url_of(path, environ) if path.exists() else DEFAULT_URL


def _url_of(path: Path, environ: Mapping[str, str]) -> str:
    """Return the address in agents.yaml; mistakes elsewhere in the file do not matter to a client."""
    document = read_document(path, environ, free_prefix=FREE_PREFIX)
    if document.problems or not isinstance(document.data, dict):
        why = str(document.problems[0]) if document.problems else f"{path}: must be a mapping of keys"
        raise _unknown(why)
    wanted: dict[str, Any] = {"name": "gateway", "agents": _ANY_AGENT, **_some(document.data, _KEYS)}
    wanted["gateway"] = _some(document.data.get("gateway"), _GATEWAY_KEYS)
    deployment, errors = validated(Deployment, wanted)
    if deployment is None:
        where, message = next(iter(located(Deployment, errors)))
        raise _unknown(str(document.problem(where, message)))
    configuration = Configuration(deployment, path, document.lines, FastAgentFile())
    if configuration.configured_port == 0:
        raise _unknown(str(document.problem("gateway.port", "0 takes any port")))
    return for_this_machine(configuration)


def _some(section: object, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: section[key] for key in keys if key in section} if isinstance(section, dict) else {}


def _unknown(why: str) -> UsageError:
    return UsageError(f"{why}. The gateway's address is not known; give it with --url or {URL_VARIABLE}.")
