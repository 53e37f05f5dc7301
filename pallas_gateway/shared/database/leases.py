"""Leases in the database: a process renews them, and they end some time after it has ended."""

from __future__ import annotations

from dataclasses import dataclass

RENEWALS = 4  # of a lease in its lifetime, so that a short outage of the database does not lose it


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The terms of this process's leases: each ends so many seconds after it was taken or renewed.

    `process` is the name of this process in them, by which others reach it.
    """

    seconds: float
    process: str | None = None
