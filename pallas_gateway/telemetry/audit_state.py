"""The state of the audit log as metrics show it."""

from __future__ import annotations

from typing import NamedTuple

HEAD_DIGITS = 13
"""Of a hash: a sample of a metric holds 53 bits."""


class AuditState(NamedTuple):
    """The state of an audit log that is on.

    Attributes:
        output: `file`, `stdout` or `syslog`.
        sequence: the number of the last line.
        head: the first `HEAD_DIGITS` digits of its SHA-256, as a number.
        is_up: lines can be written.
    """

    output: str
    sequence: int
    head: int
    is_up: bool
