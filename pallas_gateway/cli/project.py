"""Loads the project of the working directory: `.env`, the import path, the configuration."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.loading.environment import config_path, load_dotenv_file
from pallas_gateway.config.loading.loader import LoadedFiles, Overrides, read_deployment
from pallas_gateway.config.loading.secret_values import secret_values, secrets_of_environment
from pallas_gateway.config.problems import ConfigurationError
from pallas_gateway.telemetry import redaction

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Path of agents.yaml; PALLAS_AGENTS_CONFIG sets another default.")
]


def load_project(config: Path | None, overrides: Overrides) -> Configuration:
    """Load `.env` and the configuration, make the project's modules importable, and have its secrets redacted.

    Raises:
        ConfigurationError: with every problem of the files.
    """
    configuration = read_project(config, overrides).usable()
    make_ready(configuration)
    return configuration


def read_project(config: Path | None, overrides: Overrides) -> LoadedFiles:
    """Load `.env` and as much of the configuration as can be read."""
    try:
        load_dotenv_file(Path.cwd(), os.environ)
    except ConfigurationError as error:
        return LoadedFiles(None, error.problems)
    return read_deployment(config_path(os.environ, config), environ=os.environ, overrides=overrides)


def make_ready(configuration: Configuration) -> None:
    """Make the project's modules importable, and have its secrets redacted.

    The documented layout keeps agent modules in the working directory, so it comes before the folder of `agents.yaml`.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    if (project_folder := str(configuration.folder)) not in sys.path:
        sys.path.insert(sys.path.index(here) + 1, project_folder)
    own = secret_values({"database": configuration.deployment.gateway.database})
    redaction.configured.add(configuration.fastagent.secrets | own | secrets_of_environment(os.environ))
