"""Errors of the gateway's database."""

from __future__ import annotations

from pallas_gateway.errors import GatewayError


class DatabaseUnavailableError(GatewayError):
    """The database cannot be used now; an operator must repair it, callers may try again."""

    reason = "threads_unavailable"
    sentence = "The conversations' database cannot be used now; try again in a moment."

    def __init__(self) -> None:
        super().__init__(self.sentence)


class DatabaseBusyError(DatabaseUnavailableError):
    """One transaction failed, which says nothing about the database: it took too long, or broke a rule of a table."""

    reason = "busy"
    sentence = "The database is busy; try again in a moment."


class DatabaseSchemaError(GatewayError):
    """The database's tables are newer than this version of the gateway, or older and not to be upgraded by it."""

    reason = "threads_schema_newer"
    exit_code = 2
