"""Files of agent definitions, which several commands take."""

from __future__ import annotations

import sys
from pathlib import Path

from pallas_gateway.client.usage import UsageError
from pallas_gateway.config.problems import ConfigurationError, Problem
from pallas_gateway.config.yaml.definitions import DeclaredDefinitions, read_definitions

STDIN = "-"


def definitions_of(file: str) -> DeclaredDefinitions:
    """Return the definitions in a file, or on standard input.

    Raises:
        ConfigurationError: it cannot be read, or is malformed.
        UsageError: stdin is no text.
    """
    if file != STDIN:
        return read_definitions(text_of(Path(file), "no such file; -f names a file as `export` prints it")[1], file)
    try:
        return read_definitions(sys.stdin.buffer.read().decode("utf-8-sig"), "stdin")
    except UnicodeDecodeError:
        raise UsageError("stdin is not UTF-8 text.") from None


def text_of(path: Path, missing: str) -> tuple[bytes, str]:
    """Return the content of a file as bytes and as text; `missing` is the message if it does not exist.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        content = path.read_bytes()
        return content, content.decode("utf-8-sig")
    except FileNotFoundError:
        why = missing
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        why = "is not UTF-8 text; save it as UTF-8"
    raise ConfigurationError([Problem(str(path), None, "", why)])
