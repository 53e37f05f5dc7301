"""Fixtures of the gateway's commands."""

from tests.support.command_fixtures import asking, folder, gateway, run

__all__ = ["asking", "folder", "gateway", "run"]
