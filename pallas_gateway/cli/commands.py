"""The commands of `pallas-gateway`, the older `pallas`, and their exit codes.

Exit codes: 0 success, 1 failure or a bad answer (an unhealthy agent), 2 bad usage or configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from pallas_gateway import __version__
from pallas_gateway.cli.apply import apply
from pallas_gateway.cli.audit import audit
from pallas_gateway.cli.check import check
from pallas_gateway.cli.database import database
from pallas_gateway.cli.export import export
from pallas_gateway.cli.init import init
from pallas_gateway.cli.routes import routes
from pallas_gateway.cli.schema import schema
from pallas_gateway.cli.serve import serve
from pallas_gateway.cli.token import token
from pallas_gateway.client.agents.command import agents
from pallas_gateway.client.call import call
from pallas_gateway.client.calls import calls
from pallas_gateway.client.chat.command import chat
from pallas_gateway.client.connect import connect
from pallas_gateway.client.health import health
from pallas_gateway.client.output import CANCELLED, problem
from pallas_gateway.client.sign_in.command import login, logout
from pallas_gateway.client.usage import usage
from pallas_gateway.config.problems import ConfigurationError
from pallas_gateway.errors import GatewayError

app = typer.Typer(
    name="pallas-gateway",
    help="Every fast-agent agent of a project as an MCP server of its own, behind one port.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (init, serve, check, health, call, chat, connect, usage, login, logout, schema, routes, export, apply):
    app.command()(command)
app.add_typer(token, name="token")
app.add_typer(audit, name="audit")
app.add_typer(database, name="database")
app.add_typer(calls, name="calls")
app.add_typer(agents, name="agents")


older = typer.Typer(pretty_exceptions_enable=False)
older.command(help=f"pallas-gateway serve --per-port: each agent at /mcp on its own port. {serve.__doc__}")(serve)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"pallas-gateway {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    del version


def run(command: Callable[[], object]) -> None:
    """Run a command; ends the process with its exit code."""
    try:
        command()
    except ConfigurationError as error:
        for one in error.problems:
            problem(str(one))
        sys.exit(error.exit_code)
    except GatewayError as error:
        problem(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # while loading: a running command handles it
        problem(CANCELLED)
        sys.exit(1)
