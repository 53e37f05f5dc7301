"""`pallas-gateway audit`: the head of the audit log, and the verification of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pallas_gateway.cli.project import ConfigOption, read_project
from pallas_gateway.client.arguments import CommandError, UsageError
from pallas_gateway.client.output import counted, problem, result
from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.features.audit.chain import BEGIN, Head, head_before, tail_of_file
from pallas_gateway.features.audit.sinks import STDOUT, SYSLOG
from pallas_gateway.features.audit.verifying import verify as verify_files

audit = typer.Typer(help="The audit log.", no_args_is_help=True)


@audit.command()
def head(config: ConfigOption = None) -> None:
    """Print the head of the audit log, SEQ:HASH: keep it elsewhere, and verify the log with it later."""
    configuration = read_project(config, Overrides()).usable()
    output = configuration.deployment.gateway.audit_log
    if output is None:
        raise UsageError("agents.yaml sets no gateway.audit_log, so there is no audit log.")
    if output == STDOUT or output.startswith(SYSLOG):
        raise UsageError("gateway.audit_log names no file; the ordinary log of the gateway has the head.")
    path = configuration.folder / output
    try:
        tail = tail_of_file(path)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    if tail.is_torn:
        problem(f"{path}: the last line is incomplete")
    problem(f"head of {path}:")
    result(str(tail.head or head_before(path)))


@audit.command()
def verify(
    files: Annotated[list[Path], typer.Argument(help="Files in the order of their rotation, the oldest first.")],
    expect: Annotated[
        list[str] | None, typer.Option(metavar="SEQ:HASH", help="A head that was kept elsewhere; may be repeated.")
    ] = None,
) -> None:
    """Verify files of an audit log; exit 1 if lines were changed, removed or reordered."""
    try:
        kept = [Head.parse(one) for one in expect or ()]
    except ValueError as error:
        raise UsageError(f"--expect: {error}.") from error
    try:
        verified = verify_files(files, kept)
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    for finding in verified.findings:
        problem(f"{'' if finding.is_fault else 'note: '}{finding}")
    if verified.left_out:
        problem(f"… and {verified.left_out} more")
    if verified.faults:
        problem(f"The audit log is not whole: {counted(verified.faults, 'fault')}.")
        raise typer.Exit(1)
    held = f", with {counted(len(kept), 'kept head')}" if kept else ""
    problem(f"Every line follows the one before it{held}. The head:")
    result(str(verified.head or BEGIN))
