"""Where log records go and how they look, knob by knob."""

import asyncio
import contextlib
import io
import json
import logging
import logging.handlers
import os
import re
import resource
import stat
import sys
import threading
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, override

import pytest

from pallas_gateway.telemetry import log_outputs, log_sizes, logs, redaction
from pallas_gateway.telemetry.current_call import working_on
from pallas_gateway.telemetry.log_outputs import FileOutput
from tests.support.waiting import Gate

NO_FILE = {"PALLAS_LOG_FILE": ""}
SILENT = {**NO_FILE, "PALLAS_LOG_STDERR": "0"}
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

DOCUMENTED_AS_QUIET = (
    "openai", "openai._base_client", "anthropic", "anthropic._base_client", "sse_starlette", "sse_starlette.sse", "mcp",
    "mcp.client", "mcp.client.streamable_http", "mcp.server", "httpx", "httpcore", "httpcore.http11",
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


def read(folder: Path) -> list[dict[str, Any]]:
    return lines(folder / "log")


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


def test_stderr_is_for_people_by_default(stderr: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(NO_FILE)
    log = logging.getLogger("pallas.test")
    log.info("agent ready", extra={"agent": "echo"})
    log.warning("downstream %s", "gone", extra={"server": "tools", "tries": 2})

    ready, gone = stderr.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d agent ready agent=echo", ready)
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING downstream gone server=tools tries=2", gone)
    assert capsys.readouterr().out == ""


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


def test_a_json_line_has_the_documented_keys_and_the_records_fields(tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_STDERR": "0"})
    before = datetime.now(UTC)
    logging.getLogger("pallas.test").warning(
        "call %d\nfailed ✓", 7, extra={"call_id": "c1", "seconds": 0.5, "path": tmp_path, "trace_id": None}
    )

    (line,) = lines(tmp_path / "log")
    assert before <= datetime.fromisoformat(line.pop("time")) <= datetime.now(UTC)
    assert line == {
        "level": "WARNING",
        "logger": "pallas.test",
        "message": "call 7\nfailed ✓",
        "call_id": "c1",
        "seconds": 0.5,
        "path": str(tmp_path),
        "trace_id": None,
    }


def file_handlers() -> list[logging.handlers.RotatingFileHandler]:
    handlers = logging.getLogger().handlers
    return [handler for handler in handlers if isinstance(handler, logging.handlers.RotatingFileHandler)]


def test_the_file_rotates_at_ten_megabytes_and_keeps_five(tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log")})
    (handler,) = file_handlers()
    assert (handler.maxBytes, handler.backupCount) == (10_000_000, 5)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_full_file_is_rotated_and_the_files_and_the_folders_made_for_them_are_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        logs.set_up(
            {"PALLAS_LOG_FILE": str(tmp_path / "new" / "deeper" / "log"), "PALLAS_LOG_STDERR": "0"},
            make_file=partial(FileOutput, max_bytes=300),
        )
        for number in range(30):
            logging.getLogger("pallas.test").info("record %d", number)
    finally:
        os.umask(before)
    files = list((tmp_path / "new" / "deeper").iterdir())
    assert sorted(file.name for file in files) == ["log", *(f"log.{n}" for n in range(1, 6))]
    assert {mode(file) for file in files} == {0o600}
    assert [mode(tmp_path / "new"), mode(tmp_path / "new" / "deeper")] == [0o700, 0o700]


def test_a_folder_and_a_file_that_were_there_keep_their_modes(tmp_path: Path) -> None:
    folder, file = tmp_path / "logs", tmp_path / "logs" / "log"
    folder.mkdir()
    file.touch()
    folder.chmod(0o755)
    file.chmod(0o640)
    logs.set_up({"PALLAS_LOG_FILE": str(file), "PALLAS_LOG_STDERR": "0"})
    logging.getLogger("pallas.test").info("hello")
    assert (mode(folder), mode(file)) == (0o755, 0o640)
    assert len(lines(file)) == 1


@pytest.mark.parametrize(
    ("environ", "file"),
    [({}, ".local/state/pallas/pallas.log"), ({"PALLAS_LOG_FILE": "~/deep/er/log"}, "deep/er/log")],
    ids=["without a name", "a tilde in it"],
)
def test_the_file_is_in_the_users_home(
    environ: dict[str, str], file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    logs.set_up({**environ, "PALLAS_LOG_STDERR": "0"})
    logging.getLogger("pallas.test").info("hello")
    assert len(lines(tmp_path / file)) == 1


def test_an_empty_name_is_no_file_and_without_stderr_nothing_is_written_at_all(
    tmp_path: Path, stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    logs.set_up(SILENT)
    logging.getLogger("pallas.test").error("broken")
    assert file_handlers() == []
    assert list(tmp_path.iterdir()) == []
    assert (stderr.getvalue(), *capfd.readouterr()) == ("", "", "")


def test_a_user_without_a_home_has_no_file_and_is_told(stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    logs.set_up({})
    assert file_handlers() == []
    said = "WARNING log file path invalid file=~/.local/state/pallas/pallas.log error=Could not determine"
    assert said in stderr.getvalue()


def test_setting_up_again_replaces_what_was_there(stderr: io.StringIO, tmp_path: Path) -> None:
    for name in ("old", "new"):
        logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / name)})
    logging.getLogger("pallas.test").info("once")
    assert not (tmp_path / "old").exists()
    assert len(lines(tmp_path / "new")) == 1
    assert len(stderr.getvalue().splitlines()) == 1


def test_every_record_of_a_call_carries_its_ids_and_what_it_says_itself_wins(tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_STDERR": "0"})
    library = logging.getLogger("some.library")
    with working_on(agent="echo", call_id="c1", conversation_id="v1", trace_id="t1"):
        library.warning("inside")
        library.warning("about another", extra={"agent": "search", "conversation_id": None})
    library.warning("outside")
    with working_on(agent="echo", call_id="c1"):
        library.warning("of a request that brought no trace id")

    ids = [
        {key: line.get(key) for key in ("agent", "call_id", "conversation_id", "trace_id")} for line in read(tmp_path)
    ]
    inside = {"agent": "echo", "call_id": "c1", "conversation_id": "v1", "trace_id": "t1"}
    about_another, outside = {**inside, "agent": "search", "conversation_id": None}, dict.fromkeys(inside)
    untraced = {**inside, "conversation_id": None, "trace_id": None}
    assert ids == [inside, about_another, outside, untraced]
    _, _, outside, untraced = read(tmp_path)
    assert ("call_id" in outside, "conversation_id" in untraced, "trace_id" in untraced) == (False, True, False)


async def test_tasks_of_a_call_inherit_its_ids_and_calls_side_by_side_keep_their_own(tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_STDERR": "0"})
    gate = Gate()

    async def work(name: str) -> None:
        await gate.enter(name)
        logging.getLogger("some.library").warning(name)

    def start(name: str) -> asyncio.Task[None]:
        with working_on(agent="echo", call_id=name):
            return asyncio.create_task(work(name))

    tasks = [start("c1"), start("c2")]
    await gate.wait_for_entered(2)
    gate.open()
    await asyncio.gather(*tasks)
    assert {(line["message"], line["call_id"]) for line in read(tmp_path)} == {("c1", "c1"), ("c2", "c2")}


def test_people_are_shown_the_agent_and_the_call_and_no_empty_fields(stderr: io.StringIO) -> None:
    logs.set_up(NO_FILE)
    with working_on(agent="echo", call_id="c1", conversation_id="v1", trace_id="t1"):
        tools: dict[str, int] = {}
        extra = {"tokens": {"input": 3, "output": 0}, "tools": tools, "halted": ["repeat", "deadline"], "calls": 0}
        logging.getLogger("pallas.calls").info("call ended", extra=extra)
        logging.getLogger("pallas.calls").info("nothing", extra={"tokens": {"input": 0, "output": 0}, "error": ""})
    shown, nothing = stderr.getvalue().splitlines()
    assert shown.endswith(" call ended tokens=input:3 halted=repeat,deadline calls=0 agent=echo call_id=c1")
    assert nothing.endswith(" nothing agent=echo call_id=c1")


def test_an_exception_that_comes_as_text_is_one_line_for_people(stderr: io.StringIO) -> None:
    logs.set_up(NO_FILE)
    traceback = "Traceback (most recent call last):\n  File …\nValueError: broken\n"
    logging.getLogger("pallas.fast_agent").warning("failed", extra={"exception": traceback})
    assert stderr.getvalue().endswith("WARNING failed (ValueError: broken)\n")


def test_no_field_takes_the_place_of_a_documented_key(tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_STDERR": "0"})
    logging.getLogger("pallas.test").info("said", extra={"level": "?", "logger": "?", "time": "?"})
    (line,) = read(tmp_path)
    assert (line["level"], line["logger"], line["time"] != "?") == ("INFO", "pallas.test", True)


@pytest.mark.parametrize("stderr_format", ["", "1"])
def test_no_record_shows_a_secret_wherever_it_stands(
    stderr_format: str, stderr: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "configured", known := redaction.KnownSecrets())
    known.add(["canary-from-the-file"])
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_STDERR": stderr_format})
    log = logging.getLogger("some.library")
    with redaction.hiding("canaryofthecall"):
        log.warning("sent %s", {"Authorization": "Bearer canaryofthecall"})
        log.warning("sent", extra={"headers": ["canary-from-the-file"], "api_key": "canary-by-name", "why": "it is"})
        try:
            raise ValueError("rejected canaryofthecall\nand sk-canary-by-shape")
        except ValueError:
            log.exception("failed")
            log.critical("crashed", exc_info=True)

    written = (tmp_path / "log").read_text() + stderr.getvalue()
    assert "canary" not in written
    assert [line["message"] for line in read(tmp_path)] == [
        "sent {'Authorization': '****'}",
        "sent",
        "failed",
        "crashed",
    ]
    assert read(tmp_path)[1] | {"headers": ["****"], "api_key": "****", "why": "it is"} == read(tmp_path)[1]


@pytest.mark.parametrize("name", [*DOCUMENTED_AS_QUIET, "hpack.hpack"])
def test_chatty_libraries_stay_at_warning_whatever_the_roots_level_and_their_own(name: str, tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_ROOT_LOG_LEVEL": "DEBUG"})
    library = logging.getLogger(name)
    before = library.level
    assert library.getEffectiveLevel() == WARNING
    library.setLevel(DEBUG)
    try:
        library.debug("send_request_headers.started")
        library.warning("connection lost")
    finally:
        library.setLevel(before)
    assert [line["message"] for line in read(tmp_path)] == ["connection lost"]


def test_a_full_disk_is_said_once_and_the_file_goes_on_when_it_can(stderr: io.StringIO, tmp_path: Path) -> None:
    path, real = tmp_path / "log", tmp_path / "real"
    path.symlink_to("/dev/full")  # every write fails with "No space left on device"
    logs.set_up({"PALLAS_LOG_FILE": str(path)})
    log = logging.getLogger("pallas.test")
    for number in range(3):
        log.info("lost %d", number)
    path.unlink()
    real.write_text('{"message": "whole"}\n{"message": "to')  # as a full disk leaves it
    path.symlink_to(real)
    for number in range(2):
        log.info("kept %d", number)

    said = [line[9:] for line in stderr.getvalue().splitlines()]
    trouble = "log file cannot be written"
    assert said == [
        "lost 0",
        f"ERROR {trouble} file={path} error=No space left on device",
        "lost 1",
        "lost 2",
        "kept 0",
        f"WARNING log file written again file={path} lost_records=3",
        "kept 1",
    ]
    whole, torn, *rest = real.read_text().splitlines()
    assert (whole, torn) == ('{"message": "whole"}', '{"message": "to')
    assert [json.loads(line)["message"] for line in rest] == ["kept 0", "log file written again", "kept 1"]


def test_a_file_that_cannot_be_opened_at_first_is_said_once_and_tried_again(
    stderr: io.StringIO, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "file" / "log")})
    log = logging.getLogger("pallas.test")
    log.info("lost")
    log.info("lost as well")
    (tmp_path / "file").unlink()
    log.info("kept")

    trouble = "ERROR log file cannot be written"
    assert stderr.getvalue().count(trouble) == 1
    assert [line["message"] for line in read(tmp_path / "file")] == ["kept", "log file written again"]
    assert read(tmp_path / "file")[1]["lost_records"] == 2


@pytest.fixture
def file_size() -> Generator[Callable[[int], None]]:
    """Sets the size at which files of this process cannot grow any more, until the test ends."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_that_a_full_disk_tore_is_ended_before_the_next_one(
    file_size: Callable[[int], None], stderr: io.StringIO, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    logs.set_up({"PALLAS_LOG_FILE": str(path)})
    log = logging.getLogger("pallas.test")
    log.info("kept")
    file_size(path.stat().st_size + 50)
    log.info("lost")
    assert path.read_text().partition("\n")[2] != ""
    file_size(path.stat().st_size + 250)  # room for a short record: still said once
    log.info("lost %s", "x" * 500)
    file_size(resource.RLIM_INFINITY)
    log.info("kept, too")
    first, *torn, kept, again = path.read_text().splitlines()
    assert [json.loads(line)["message"] for line in (first, kept, again)] == [
        "kept",
        "kept, too",
        "log file written again",
    ]
    assert 1 <= len(torn) <= 2
    assert stderr.getvalue().count("log file cannot be written") == 1


def test_a_file_that_cannot_be_rotated_grows_and_is_rotated_when_it_can(stderr: io.StringIO, tmp_path: Path) -> None:
    now = [1000.0]
    (tmp_path / "log.1").mkdir()  # in the way, for root as well, whom permissions do not stop
    logs.set_up(
        {"PALLAS_LOG_FILE": str(tmp_path / "log")},
        make_file=partial(FileOutput, max_bytes=300, backups=1, clock=lambda: now[0]),
    )
    log = logging.getLogger("pallas.test")
    for number in range(10):
        log.info("record %d", number)
    now[0] += log_outputs.ROTATE_AGAIN_SECONDS
    log.info("record 10")

    trouble = "ERROR log file cannot be rotated"
    assert stderr.getvalue().count(trouble) == 1
    said = [line["message"] for line in read(tmp_path)]
    assert [message for message in said if message.startswith("record")] == [f"record {n}" for n in range(11)]

    (tmp_path / "log.1").rmdir()
    log.info("record 11")
    assert not (tmp_path / "log.1").exists()  # not tried again so soon
    now[0] += log_outputs.ROTATE_AGAIN_SECONDS
    log.info("record 12")
    assert [line["message"] for line in read(tmp_path)] == ["record 12"]
    assert len(lines(tmp_path / "log.1")) == 13


def test_nobody_reading_stderr_is_no_trouble_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken:
        monkeypatch.setattr(sys, "__stderr__", broken)
        logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log")})
        logging.getLogger("pallas.test").error("one")
        logging.getLogger("pallas.test").error("two")
        with contextlib.suppress(BrokenPipeError):
            broken.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)
    assert [line["message"] for line in read(tmp_path)] == ["one", "two"]


def test_a_closed_stderr_is_no_trouble_either(tmp_path: Path, stderr: io.StringIO) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log")})
    stderr.close()
    logging.getLogger("pallas.test").error("one")
    assert [line["message"] for line in read(tmp_path)] == ["one"]


class Unspeakable:
    @override
    def __str__(self) -> str:
        raise ValueError("canary")


def test_a_field_that_holds_itself_is_cut(tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log"), "PALLAS_LOG_STDERR": "0"})
    circle: list[object] = []
    circle.append(circle)
    logging.getLogger("some.library").warning("fine", extra={"circle": circle})
    (line,) = read(tmp_path)
    assert json.dumps(line["circle"]).count("[") == log_sizes.MOST_LEVELS


def test_a_record_that_cannot_be_formatted_says_where_it_came_from_and_nothing_of_its_arguments(
    stderr: io.StringIO, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log")})
    logging.getLogger("some.library").warning("%d of %d", "canary")  # noqa: PLE1206  the mistake itself
    logging.getLogger("some.library").warning("fine", extra={"odd": Unspeakable()})

    assert [line["message"] for line in read(tmp_path)] == ["log record not formatted"] * 2
    assert read(tmp_path)[0]["source"] == "some.library"
    assert "canary" not in stderr.getvalue() + capsys.readouterr().err


@pytest.mark.parametrize("word", ["1", "true", "yes", "ON"])
def test_json_on_stderr_can_be_asked_for(word: str, stderr: io.StringIO) -> None:
    logs.set_up({**NO_FILE, "PALLAS_LOG_STDERR": word})
    logging.getLogger("pallas.test").info("said", extra={"agent": "echo"})
    assert (said := json.loads(stderr.getvalue()))["message"] == "said"
    assert said["agent"] == "echo"


@pytest.mark.parametrize("variable", ["PALLAS_LOG_LEVEL", "PALLAS_ROOT_LOG_LEVEL"])
def test_a_level_that_is_none_is_warned_about(variable: str, stderr: io.StringIO) -> None:
    logs.set_up({**NO_FILE, variable: "LOUD"})
    expected = f"WARNING unknown log level variable={variable} value=LOUD"
    assert expected in stderr.getvalue()


@pytest.fixture
def crash_hooks() -> Generator[None]:
    before = sys.excepthook, threading.excepthook
    yield
    sys.excepthook, threading.excepthook = before
    logging.captureWarnings(capture=False)


@pytest.mark.usefixtures("crash_hooks")
def test_a_crash_is_a_record_and_its_trace_shows_no_secret(stderr: io.StringIO, tmp_path: Path) -> None:
    logs.set_up({"PALLAS_LOG_FILE": str(tmp_path / "log")})
    logs.report_crashes()
    try:
        raise RuntimeError("got Authorization: Bearer canary-1")
    except RuntimeError as error:
        sys.excepthook(RuntimeError, error, error.__traceback__)
        raised = error
    thread = threading.Thread(name="worker")
    threading.excepthook(threading.ExceptHookArgs((RuntimeError, raised, raised.__traceback__, thread)))

    assert [(line["level"], line["message"]) for line in read(tmp_path)] == [
        ("CRITICAL", "crashed"),
        ("ERROR", "thread crashed"),
    ]
    assert "Traceback" in stderr.getvalue()
    assert "canary" not in stderr.getvalue() + (tmp_path / "log").read_text()


@pytest.mark.usefixtures("crash_hooks")
def test_ctrl_c_and_a_thread_that_exits_are_no_crashes(stderr: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(NO_FILE)
    logs.report_crashes()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    threading.excepthook(threading.ExceptHookArgs((SystemExit, SystemExit(1), None, None)))
    assert "crashed" not in stderr.getvalue() + capsys.readouterr().err
