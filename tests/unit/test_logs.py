"""Where log records go and how they look, knob by knob."""

import io
import json
import logging
import logging.handlers
import re
import sys
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.telemetry import logs

NO_FILE = {"PALLAS_LOG_FILE": ""}
SILENT = {**NO_FILE, "PALLAS_LOG_STDERR": "0"}
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

DOCUMENTED_AS_QUIET = (
    "openai", "openai._base_client", "anthropic", "anthropic._base_client", "sse_starlette", "sse_starlette.sse", "mcp",
    "mcp.client", "mcp.server", "httpx", "httpcore",
)  # fmt: skip


@pytest.fixture(autouse=True)
def global_logging() -> Generator[None]:
    """Hide pytest's own handlers from `set_up`, which closes what it replaces; put everything back afterwards."""
    root = logging.getLogger()
    loggers = [root, *(logging.getLogger(name) for name in ("pallas", *logs.QUIET_LOGGERS))]
    handlers, levels = list(root.handlers), [logger.level for logger in loggers]
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def stderr(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", stream)
    return stream


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def say_one_of_each() -> None:
    for name in ("pallas.test", "some.library"):
        for level in (DEBUG, INFO, WARNING):
            logging.getLogger(name).log(level, "%s %s", name, logging.getLevelName(level))


@pytest.mark.parametrize(
    ("environ", "configured", "pallas", "root"),
    [
        ({}, None, INFO, INFO),
        ({"PALLAS_LOG_LEVEL": "DEBUG"}, None, DEBUG, INFO),
        ({"PALLAS_LOG_LEVEL": "debug"}, None, DEBUG, INFO),
        ({"PALLAS_LOG_LEVEL": "ERROR"}, None, ERROR, ERROR),
        ({"PALLAS_LOG_LEVEL": "nonsense"}, None, INFO, INFO),
        ({"PALLAS_LOG_LEVEL": ""}, "debug", DEBUG, INFO),
        ({}, "debug", DEBUG, INFO),
        ({}, "warning", WARNING, WARNING),
        ({"PALLAS_LOG_LEVEL": "ERROR"}, "debug", ERROR, ERROR),
        ({"PALLAS_ROOT_LOG_LEVEL": "DEBUG"}, None, INFO, DEBUG),
        ({"PALLAS_LOG_LEVEL": "DEBUG", "PALLAS_ROOT_LOG_LEVEL": "ERROR"}, None, DEBUG, ERROR),
    ],
)
def test_levels_come_from_the_environment_then_from_fast_agents_file(
    environ: dict[str, str], configured: str | None, pallas: int, root: int
) -> None:
    logs.set_up({**SILENT, **environ}, configured_level=configured)
    assert logging.getLogger("pallas").level == pallas
    assert logging.getLogger().level == root


def test_a_lower_pallas_level_does_not_let_libraries_through(tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_LEVEL": "DEBUG"})
    say_one_of_each()
    assert [line["message"] for line in lines(tmp_path / "log")] == [
        "pallas.test DEBUG",
        "pallas.test INFO",
        "pallas.test WARNING",
        "some.library INFO",
        "some.library WARNING",
    ]


@pytest.mark.parametrize("name", DOCUMENTED_AS_QUIET)
def test_chatty_libraries_stay_at_warning_even_when_the_root_is_at_debug(name: str) -> None:
    logs.set_up({**SILENT, "PALLAS_ROOT_LOG_LEVEL": "DEBUG"})
    assert logging.getLogger(name).getEffectiveLevel() == WARNING


def test_stderr_is_for_people_by_default(stderr: io.StringIO) -> None:
    logs.set_up(NO_FILE)
    log = logging.getLogger("pallas.test")
    log.info("agent ready", extra={"agent": "echo"})
    log.warning("downstream %s", "gone", extra={"server": "tools", "tries": 2})

    ready, gone = stderr.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d agent ready agent=echo", ready)
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING downstream gone server=tools tries=2", gone)


def test_an_exception_is_one_line_for_people_and_a_traceback_in_json(stderr: io.StringIO, tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log")})
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("pallas.test").exception("call failed")

    assert stderr.getvalue().endswith("ERROR call failed (ValueError: broken)\n")
    (line,) = lines(tmp_path / "log")
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: broken")


def test_stderr_is_json_when_asked_for(stderr: io.StringIO) -> None:
    logs.set_up({**NO_FILE, "PALLAS_LOG_STDERR": "1"})
    logging.getLogger("pallas.test").info("agent ready", extra={"agent": "echo"})
    assert json.loads(stderr.getvalue())["agent"] == "echo"


def test_stderr_stays_empty_when_told_to(stderr: io.StringIO, tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_STDERR": "0"})
    logging.getLogger("pallas.test").error("broken")
    assert stderr.getvalue() == ""
    assert [line["message"] for line in lines(tmp_path / "log")] == ["broken"]


def test_nothing_is_ever_logged_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(NO_FILE)
    logging.getLogger("pallas.test").error("broken")
    assert capsys.readouterr().out == ""


def test_a_json_line_has_the_documented_keys_and_the_records_fields(tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_STDERR": "0"})
    before = datetime.now(UTC)
    logging.getLogger("pallas.test").warning(
        "call %d failed", 7, extra={"call_id": "c1", "seconds": 0.5, "path": tmp_path, "trace_id": None}
    )

    (line,) = lines(tmp_path / "log")
    assert before <= datetime.fromisoformat(line.pop("time")) <= datetime.now(UTC)
    assert line == {
        "level": "WARNING",
        "logger": "pallas.test",
        "message": "call 7 failed",
        "call_id": "c1",
        "seconds": 0.5,
        "path": str(tmp_path),
        "trace_id": None,
    }


def test_a_message_of_several_lines_is_one_line_of_json(tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_STDERR": "0"})
    logging.getLogger("pallas.test").warning("one\ntwo ✓")
    assert [line["message"] for line in lines(tmp_path / "log")] == ["one\ntwo ✓"]


def file_handlers() -> list[logging.handlers.RotatingFileHandler]:
    handlers = logging.getLogger().handlers
    return [handler for handler in handlers if isinstance(handler, logging.handlers.RotatingFileHandler)]


def test_the_file_rotates_at_ten_megabytes_and_keeps_five(tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log")})
    (handler,) = file_handlers()
    assert (handler.maxBytes, handler.backupCount) == (10_000_000, 5)


def test_a_full_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 300)
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_STDERR": "0"})
    for number in range(30):
        logging.getLogger("pallas.test").info("record %d", number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", *(f"log.{n}" for n in range(1, 6))]


def test_without_a_name_the_file_is_in_the_users_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    logs.set_up({"PALLAS_LOG_STDERR": "0"})
    logging.getLogger("pallas.test").info("hello")
    assert len(lines(tmp_path / ".local" / "state" / "pallas" / "pallas.log")) == 1


def test_a_tilde_in_the_name_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    logs.set_up({"PALLAS_LOG_FILE": "~/deep/er/log", "PALLAS_LOG_STDERR": "0"})
    assert (tmp_path / "deep" / "er" / "log").exists()


def test_an_empty_name_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    logs.set_up(SILENT)
    logging.getLogger("pallas.test").error("broken")
    assert file_handlers() == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_a_warning_and_nothing_worse(stderr: io.StringIO, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "file" / "log")})
    assert file_handlers() == []
    assert f"WARNING no log file, going on without one file={tmp_path / 'file' / 'log'}" in stderr.getvalue()


def test_setting_up_again_replaces_what_was_there(stderr: io.StringIO, tmp_path: Path) -> None:
    for name in ("old", "new"):
        logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / name)})
    logging.getLogger("pallas.test").info("once")
    assert (tmp_path / "old").read_text() == ""
    assert len(lines(tmp_path / "new")) == 1
    assert len(stderr.getvalue().splitlines()) == 1
