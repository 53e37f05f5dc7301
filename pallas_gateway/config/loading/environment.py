"""The process environment: `.env`, and the path of `agents.yaml`. YAML values are expanded elsewhere."""

from collections.abc import Mapping, MutableMapping
from pathlib import Path

from dotenv import dotenv_values

from pallas_gateway.config.problems import ConfigurationError, Problem

DEFAULT_CONFIG = "agents.yaml"
CONFIG_VARIABLE = "PALLAS_AGENTS_CONFIG"
DOTENV = ".env"


def load_dotenv_file(directory: Path, environ: MutableMapping[str, str]) -> None:
    """Add the variables of `.env` in `directory` to `environ`; variables that are set, even if empty, are kept.

    Raises:
        ConfigurationError: The file exists and cannot be read.
    """
    path = directory / DOTENV
    try:
        values = dotenv_values(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError([Problem(str(path), None, "", "cannot be read as UTF-8 text")]) from error
    for name, value in values.items():
        if value is not None:
            environ.setdefault(name, value)


def config_path(environ: Mapping[str, str], option: Path | None) -> Path:
    """Return the path of `agents.yaml`: the option, else `PALLAS_AGENTS_CONFIG`, else the working directory."""
    return option or Path(environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
