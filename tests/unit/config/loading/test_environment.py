"""`.env` and the place of the configuration file."""

from pathlib import Path

import pytest

from pallas_gateway.config.loading.environment import config_path, load_dotenv_file
from pallas_gateway.config.problems import ConfigurationError


def test_dotenv_adds_variables_and_overwrites_none(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "NEW=from-file\nSET=from-file\nEMPTY=from-file\nBARE\n# comment\nexport QUOTED='a b'\n"
    )
    environ = {"SET": "before", "EMPTY": ""}
    load_dotenv_file(tmp_path, environ)
    assert environ == {"SET": "before", "EMPTY": "", "NEW": "from-file", "QUOTED": "a b"}


def test_no_dotenv_is_fine(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    load_dotenv_file(tmp_path, environ)
    assert environ == {}


def test_a_dotenv_in_another_encoding_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes("NAME=Müller\n".encode("latin-1"))
    with pytest.raises(ConfigurationError, match="cannot be read as UTF-8 text"):
        load_dotenv_file(tmp_path, {})


def test_the_option_wins_over_the_variable_and_that_over_the_default() -> None:
    environ = {"PALLAS_AGENTS_CONFIG": "deploy/agents.yaml"}
    assert config_path(environ, Path("mine.yaml")) == Path("mine.yaml")
    assert config_path(environ, None) == Path("deploy/agents.yaml")
    assert config_path({"PALLAS_AGENTS_CONFIG": ""}, None) == Path("agents.yaml")
