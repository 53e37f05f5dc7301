"""`pallas-gateway audit head` and `audit verify`, also of altered files."""

import gzip
import os
from pathlib import Path

import pytest

from pallas_gateway.config.model.deployment import GatewaySettings
from pallas_gateway.features.audit.audit_log import AuditLog
from tests.support.commands import Command

AGENTS = """\
name: audited
gateway: {{audit_log: {log}}}
agents: {{a: {{instruction: Help., model: passthrough}}}}
"""


@pytest.fixture
def log(folder: Path) -> Path:
    """The audit log of the project in the working directory, with some calls."""
    (folder / "agents.yaml").write_text(AGENTS.format(log="audit.log"))
    written = AuditLog.open(GatewaySettings(audit_log="audit.log", audit_sync="never"), folder)
    for number in range(8):
        written.record({"action": "call", "call_id": str(number)})
    written.close()
    return folder / "audit.log"


def test_the_head_is_printed_last_and_verified_later(run: Command, log: Path) -> None:
    head = run("audit", "head").out.splitlines()[-1]
    assert head.startswith("10:")

    ran = run("audit", "verify", str(log), "--expect", head)

    assert ran.code == 0
    assert ran.out == f"{head}\n"
    assert "Every line follows the one before it, with 1 kept head." in ran.err


def test_a_change_in_the_middle_leaves_the_head_and_is_found(run: Command, log: Path) -> None:
    head = run("audit", "head").out
    log.write_bytes(log.read_bytes().replace(b'"call_id":"3"', b'"call_id":"4"'))

    assert run("audit", "head").out == head
    ran = run("audit", "verify", str(log))

    assert ran.code == 1
    assert f"{log}:6: refers to another line 5 than the one before it: that one was changed" in ran.err
    assert "The audit log is not whole: 1 fault." in ran.err


def test_a_log_written_again_from_the_start_has_another_head_and_is_found_by_the_kept_one(
    run: Command, log: Path
) -> None:
    head = run("audit", "head").out.strip()
    log.unlink()
    other = AuditLog.open(GatewaySettings(audit_log="audit.log", audit_sync="never"), log.parent)
    for _ in range(20):
        other.record({"action": "call"})
    other.close()

    assert run("audit", "head").out.strip() != head
    assert run("audit", "verify", str(log)).code == 0
    ran = run("audit", "verify", str(log), "--expect", head)
    assert ran.code == 1
    assert "line 10 is not the one of the kept head" in ran.err


def test_a_line_that_a_crash_cut_is_a_note_of_both_commands(run: Command, log: Path) -> None:
    head = run("audit", "head").out
    log.write_bytes(log.read_bytes() + b'{"seq":11,"prev"')

    ran = run("audit", "head")
    assert ran.out == head
    assert "the last line is incomplete" in ran.err
    ran = run("audit", "verify", str(log))
    assert ran.code == 0
    assert f"note: {log}:11: was cut by a crash" in ran.err


@pytest.mark.parametrize("why", ["the file is a symbolic link", "it is not a regular file"])
def test_what_is_no_file_of_its_own_has_no_head(run: Command, log: Path, why: str) -> None:
    log.rename(log.with_name("other"))
    if "link" in why:
        log.symlink_to("other")
    else:
        os.mkfifo(log)
    ran = run("audit", "head")
    assert (ran.code, ran.out, ran.err) == (1, "", f"{log}: {why}\n")


def test_many_faults_are_counted(run: Command, log: Path) -> None:
    log.write_bytes(b"no line\n" * 80)
    ran = run("audit", "verify", str(log))
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 52
    assert "… and 30 more" in ran.err
    assert "80 faults" in ran.err


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("null", "agents.yaml sets no gateway.audit_log, so there is no audit log."),
        ("'-'", "gateway.audit_log names no file"),
        ("'syslog:'", "gateway.audit_log names no file"),
    ],
)
def test_an_audit_log_without_a_file_has_no_head_to_read(run: Command, folder: Path, output: str, why: str) -> None:
    (folder / "agents.yaml").write_text(AGENTS.format(log=output))
    ran = run("audit", "head")
    assert ran.code == 2
    assert why in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("verify", "nowhere"), 1, "nowhere: "),
        (("verify", "audit.log", "--expect", "7"), 2, "--expect: a head is SEQ:HASH, with at least 12 digits"),
        (("verify", "broken.gz"), 1, "broken.gz: the compressed file is damaged: Not a gzipped file"),
        (("verify", "/proc/self/mem"), 1, "/proc/self/mem: Input/output error"),
        (("verify", "damaged.gz"), 1, "damaged.gz: the compressed file is damaged: Error -3"),
    ],
)
def test_mistakes_are_one_line(run: Command, log: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    (log.parent / "broken.gz").write_bytes(b"no gzip")
    (log.parent / "damaged.gz").write_bytes(gzip.compress(b"")[:10] + b"\xff" * 40)
    ran = run("audit", *arguments)
    assert ran.code == code
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("content", [b"key: value\n", None])
def test_the_head_of_a_file_that_is_none_is_a_failure(run: Command, log: Path, content: bytes | None) -> None:
    log.unlink()
    if content is not None:
        log.write_bytes(content)
    ran = run("audit", "head")
    assert ran.code == 1
    assert str(log.name) in ran.err
