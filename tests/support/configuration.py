"""Loads the configuration of a test's project."""

from collections.abc import Mapping
from pathlib import Path

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.loading.loader import NO_OVERRIDES, Overrides, read_deployment


def load_deployment(path: Path, *, environ: Mapping[str, str], overrides: Overrides = NO_OVERRIDES) -> Configuration:
    """Return the configuration of a file.

    Raises:
        ConfigurationError: With every problem of all files.
    """
    return read_deployment(path, environ=environ, overrides=overrides).usable()
