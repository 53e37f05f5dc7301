"""The writer of the audit log: it continues its chain, through restarts, rotation, full disks and crashes."""

import asyncio
import errno
import json
import logging
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.features.audit.audit_log import AuditLog, AuditLogError, AuditUnavailableError
from pallas_gateway.features.audit.chain import BEGIN, Head
from pallas_gateway.features.audit.verifying import CUT, ChainFinding, verify

FILE = "audit.log"
CALL = {"action": "call", "outcome": "allowed", "caller": "key:ci-1"}
KEYS = ("a secret of at least 32 characters", "another secret of at least 32 bytes")


def settings(**of: Any) -> GatewaySettings:
    return GatewaySettings.model_validate({"audit_log": FILE, "audit_sync": "never", **of})


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def actions(file: Path) -> list[str]:
    return [one["action"] for one in lines(file)]


def is_whole(*files: Path, kept: Head = BEGIN) -> bool:
    return verify(files, [kept]).findings == []


@pytest.fixture
def full_disk() -> Generator[None]:
    """A disk on which no file grows beyond 2,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_log_begins_with_its_start_and_ends_with_its_stop(tmp_path: Path) -> None:
    log = AuditLog.open(settings(), tmp_path)
    log.record(CALL)
    head = log.head
    log.close()

    assert actions(tmp_path / FILE) == ["start", "call", "stop"]
    assert head.sequence == 2
    assert is_whole(tmp_path / FILE, kept=head)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_without_a_setting_nothing_is_written(tmp_path: Path) -> None:
    log = AuditLog.open(GatewaySettings(), tmp_path)
    log.record(CALL)
    log.close()

    assert not log.is_on
    assert [*tmp_path.iterdir()] == []


def test_the_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    for _ in range(3):
        log = AuditLog.open(settings(), tmp_path)
        log.record(CALL)
        log.close()

    assert [one["seq"] for one in lines(tmp_path / FILE)] == [*range(1, 10)]
    assert is_whole(tmp_path / FILE)


@pytest.mark.parametrize("kept_bytes", [1, 60, 200])
def test_a_line_that_a_crash_cut_is_closed_and_the_chain_goes_on(tmp_path: Path, kept_bytes: int) -> None:
    file = tmp_path / FILE
    log = AuditLog.open(settings(), tmp_path)
    log.record(CALL)
    log.close()
    whole = file.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    file.write_bytes(whole[: min(last + kept_bytes, len(whole) - 3)])

    AuditLog.open(settings(), tmp_path).close()

    assert verify([file]).findings == [ChainFinding(f"{file}:3", CUT, is_fault=False)]


def test_a_line_that_only_lacks_its_newline_is_in_the_chain(tmp_path: Path) -> None:
    file = tmp_path / FILE
    AuditLog.open(settings(), tmp_path).close()
    file.write_bytes(file.read_bytes().rstrip(b"\n"))

    AuditLog.open(settings(), tmp_path).close()

    assert actions(file) == ["start", "stop", "start", "stop"]
    assert is_whole(file)


def test_a_first_line_that_a_crash_cut_begins_the_log_again(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"seq":1,"pr')
    AuditLog.open(settings(), tmp_path).close()
    assert verify([tmp_path / FILE]).findings == [ChainFinding(f"{tmp_path / FILE}:1", CUT, is_fault=False)]


@pytest.mark.parametrize("content", [b"gateway:\n  port: 8080\n", b"x" * 100])
def test_a_file_with_other_content_is_refused_and_stays(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(AuditLogError, match=rf"{FILE}: the file has other content than an audit log"):
        AuditLog.open(settings(), tmp_path)
    assert (tmp_path / FILE).read_bytes() == content


def test_a_second_gateway_with_the_same_file_is_refused(tmp_path: Path) -> None:
    log = AuditLog.open(settings(), tmp_path)
    with pytest.raises(AuditLogError, match=f"{FILE}: another gateway writes the file"):
        AuditLog.open(settings(), tmp_path)
    log.record(CALL)
    log.close()

    assert is_whole(tmp_path / FILE)
    AuditLog.open(settings(), tmp_path).close()


def test_a_symbolic_link_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "other").touch()
    (tmp_path / FILE).symlink_to(tmp_path / "other")

    log = AuditLog.open(settings(), tmp_path)

    assert not log.record(CALL)
    log.close()
    assert (tmp_path / "other").read_bytes() == b""
    assert [one.error for one in caplog.records if hasattr(one, "error")] == ["the file is a symbolic link"]


def test_a_pipe_in_the_place_of_the_file_takes_no_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, old = tmp_path / FILE, tmp_path / f"{FILE}.1"
    log = AuditLog.open(settings(), tmp_path)
    file.rename(old)
    os.mkfifo(file)
    assert not log.record(CALL)
    file.unlink()
    log.record(CALL)
    log.close()

    assert actions(file) == ["call", "stop"]
    assert is_whole(old, file)
    assert [one.error for one in caplog.records if hasattr(one, "error")] == ["it is not a regular file"]


def test_a_renamed_file_ends_and_the_chain_goes_on_in_the_next(tmp_path: Path) -> None:
    file, old, older = tmp_path / FILE, tmp_path / f"{FILE}.1", tmp_path / f"{FILE}.2"
    log = AuditLog.open(settings(), tmp_path)
    for number in range(30):
        log.record({**CALL, "call_id": str(number)})
        if number == 9:
            file.rename(older)
        if number == 19:
            file.rename(old)
            file.touch(mode=0o600)  # as logrotate's `create`
    log.close()

    assert [len(lines(one)) for one in (older, old, file)] == [11, 10, 11]
    assert is_whole(older, old, file)


@pytest.mark.parametrize("creates", [True, False])
def test_a_file_that_was_rotated_while_the_gateway_was_off_is_continued(tmp_path: Path, *, creates: bool) -> None:
    file, old = tmp_path / FILE, tmp_path / f"{FILE}-20261124"
    (tmp_path / f"{FILE}.0.gz").write_bytes(b"\x1f\x8b compressed")
    (tmp_path / f"{FILE}.link").symlink_to(tmp_path / "nowhere")
    AuditLog.open(settings(), tmp_path).close()
    file.rename(old)
    if creates:
        file.touch()

    AuditLog.open(settings(), tmp_path).close()

    assert is_whole(old, file)


def test_a_huge_file_is_continued_at_once(tmp_path: Path) -> None:
    file = tmp_path / FILE
    AuditLog.open(settings(), tmp_path).close()
    end = file.read_bytes()
    with file.open("wb") as written:  # sparse: to read it all would take a minute
        written.seek(100_000_000_000)
        written.write(b"\n" + end)

    log = AuditLog.open(settings(), tmp_path)

    assert log.head.sequence == 3
    log.close()


def test_a_full_disk_is_reported_once_and_the_chain_goes_on_later(
    tmp_path: Path, full_disk: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / FILE
    log = AuditLog.open(settings(), tmp_path)
    written = [log.record(CALL) for _ in range(30)]
    assert not written[-1]
    assert file.stat().st_size == 2000
    assert log.state is not None
    assert not log.state.is_up

    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert log.record(CALL)
    assert log.state is not None
    assert log.state.is_up
    log.close()

    assert [one.is_fault for one in verify([file]).findings] == [False]  # the line of which a part was written
    assert [one.levelname for one in caplog.records if one.levelno > logging.INFO] == ["ERROR", "WARNING"]


async def test_a_call_whose_line_cannot_be_written_is_refused_only_if_that_is_required(tmp_path: Path) -> None:
    log = AuditLog.open(settings(audit_log="/dev/full"), tmp_path)
    await log.admit(CALL)
    log.record(CALL)

    log.use(settings(audit_log="/dev/full", audit_required=True))
    with pytest.raises(AuditUnavailableError, match="The gateway cannot write its audit log") as refusal:
        await log.admit(CALL)
    assert refusal.value.reason == "audit_unavailable"
    log.record(CALL)
    log.close()


def test_a_reload_moves_the_log_turns_it_off_and_on(tmp_path: Path) -> None:
    log = AuditLog.open(settings(), tmp_path)
    log.use(settings())
    log.use(settings(audit_log="other.log"))
    log.record(CALL)
    log.use(settings(audit_log=None))
    log.record(CALL)
    log.use(settings())
    log.close()

    assert actions(tmp_path / FILE) == ["start", "stop", "start", "stop"]
    assert actions(tmp_path / "other.log") == ["start", "call", "stop"]
    assert is_whole(tmp_path / FILE)
    assert is_whole(tmp_path / "other.log")


def test_hashed_names_are_stable_over_restarts_and_hide_names(tmp_path: Path) -> None:
    named = {**CALL, "address": "192.0.2.7", "owner": "token:alice", "agent": "research"}
    for keys in (KEYS, KEYS, KEYS[::-1]):
        log = AuditLog.open(settings(audit_names="hashed", state_keys=keys), tmp_path)
        log.record(named)
        log.record({**named, "caller": "anonymous"})
        log.close()

    first, _, again, _, other, anonymous = (one for one in lines(tmp_path / FILE) if one["action"] == "call")
    hashed = ("caller", "address", "owner")
    assert all(first[name].startswith("hmac:") for name in hashed)
    assert [first[name] for name in hashed] == [again[name] for name in hashed]
    assert not {first[name] for name in hashed} & {other[name] for name in hashed}
    assert (first["agent"], anonymous["caller"]) == ("research", "anonymous")
    assert not {b"ci-1", b"192.0.2.7", b"alice"} & {*(tmp_path / FILE).read_bytes().split(b'"')}


@pytest.mark.parametrize("sync", ["second", "line"])
async def test_lines_are_forced_to_disk_in_a_thread_several_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr("pallas_gateway.features.audit.sinks.SYNC_SECONDS", 0.01)
    log = AuditLog.open(settings(audit_sync=sync), tmp_path)

    await asyncio.gather(*(log.admit(CALL) for _ in range(50)))
    if sync == "line":
        assert synced[-1] == (tmp_path / FILE).stat().st_size
    log.close()

    assert synced[-1] == (tmp_path / FILE).stat().st_size
    assert len(synced) < 10
    assert is_whole(tmp_path / FILE)


async def test_a_disk_that_fails_to_sync_refuses_the_calls_that_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    log = AuditLog.open(settings(audit_sync="line", audit_required=True), tmp_path)
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(AuditUnavailableError):
        await log.admit(CALL)
    log.close()
    assert [one.error for one in caplog.records if hasattr(one, "error")] == ["Input/output error"]


async def test_a_disk_that_does_not_answer_refuses_the_calls_that_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = Event()
    monkeypatch.setattr(os, "fsync", lambda _: answered.wait(30))
    monkeypatch.setattr("pallas_gateway.features.audit.audit_log.LONGEST_SYNC_SECONDS", 0.01)
    log = AuditLog.open(settings(audit_sync="line", audit_required=True), tmp_path)
    with pytest.raises(AuditUnavailableError):
        await log.admit(CALL)
    answered.set()
    log.close()


def test_the_head_is_in_the_ordinary_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seconds = 0.0
    log = AuditLog(tmp_path, clock=lambda: seconds)
    log.use(settings())
    log.record(CALL)
    seconds = 61.0
    log.record(CALL)
    for _ in range(1000):
        log.record(CALL)
    log.close()

    heads = [Head.parse(one.head) for one in caplog.records if hasattr(one, "head")]
    assert [one.sequence for one in heads] == [0, 3, 1003, 1004]
    assert verify([tmp_path / FILE], heads).findings == []


def test_a_process_killed_between_two_lines_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from pallas_gateway.features.audit.audit_log import AuditLog
from pallas_gateway.config.model.deployment import GatewaySettings
log = AuditLog.open(GatewaySettings(audit_log="{FILE}", audit_sync="never"), Path(sys.argv[1]))
while True:
    log.record({CALL!r})
    sys.stdout.write(f"{{log.head}}\\n")
    sys.stdout.flush()
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(20):
            head = Head.parse(process.stdout.readline())
        process.send_signal(signal.SIGKILL)

    log = AuditLog.open(settings(), tmp_path)
    assert log.head.sequence > head.sequence
    log.close()

    assert verify([tmp_path / FILE], [head]).faults == 0


def open_below(folder: Path) -> int:
    """The number of descriptors of this process for files of a folder, deleted ones included."""
    links = [one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return sum(str(link).startswith(f"{folder}/") for link in links)


def test_without_sync_no_renamed_file_stays_open(tmp_path: Path) -> None:
    file = tmp_path / FILE
    log = AuditLog.open(settings(), tmp_path)
    for number in range(5):
        file.rename(tmp_path / f"{FILE}.{number}")
        log.record(CALL)

    assert open_below(tmp_path) == 1
    log.close()
    assert open_below(tmp_path) == 0


async def test_calls_that_wait_for_the_disk_are_refused_while_the_process_has_no_descriptor_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog.open(settings(audit_sync="line", audit_required=True), tmp_path)
    await log.admit(CALL)
    with monkeypatch.context() as limited:
        limited.setattr(os, "dup", no_descriptor)
        with pytest.raises(AuditUnavailableError):
            await log.admit(CALL)

    await log.admit(CALL)
    log.close()

    assert open_below(tmp_path) == 0


def no_descriptor(_: int) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
