"""`pallas-gateway agents` and its commands: the options. `actions.py` has what each does; --help does not import it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pallas_gateway.calls.parameters import schemas_by_name
from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.call_settings import values_of
from pallas_gateway.client.gateway_client import BearerOption

if TYPE_CHECKING:
    from pallas_gateway.client.agents.actions import AgentActions

agents = typer.Typer(help="The agents of a running gateway.")

AgentArgument = Annotated[str, typer.Argument(metavar="NAME", help="The agent.")]
VersionArgument = Annotated[int, typer.Argument(metavar="N", min=1, help="Its version.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


@agents.callback(invoke_without_command=True)
def listing(
    context: typer.Context,
    url: UrlOption = None,
    bearer: BearerOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the registry's entries as JSON.")] = False,
) -> None:
    """List the agents of a running gateway, with their states; its commands manage those of its database."""
    context.obj = url, bearer
    if context.invoked_subcommand is None:
        _at(context).list_all(as_json=as_json)


@agents.command()
def create(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The new agent; without it, those of -f FILE.")] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", help="Definitions in YAML; - is stdin.")] = None,
    copy_of: Annotated[str | None, typer.Option("--copy-of", help="The agent to copy.")] = None,
    instruction: Annotated[str | None, typer.Option(help="Its system prompt; - is stdin.")] = None,
    model: Annotated[str | None, typer.Option(help="Its model, as fast-agent names it.")] = None,
    title: Annotated[str | None, typer.Option(help="Its name in the registry.")] = None,
    description: Annotated[str | None, typer.Option(help="One line about it.")] = None,
    server: Annotated[list[str] | None, typer.Option(help="An MCP server that it uses; may be repeated.")] = None,
    sub_agent: Annotated[list[str] | None, typer.Option(help="An agent that it may call; may be repeated.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: a default parameter; may be repeated.")
    ] = None,
    url: UrlOption = None,
    bearer: BearerOption = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check only, make nothing.")] = False,
) -> None:
    """Make NAME with an instruction or as a copy of another agent, or the agents of FILE; none of them may exist."""
    given = {"title": title, "description": description, "model": model, "servers": server, "agents": sub_agent}
    definition: dict[str, Any] = {key: value for key, value in given.items() if value}
    if settings:
        definition["default_params"] = values_of(settings, schemas_by_name())
    ways = [one for one in (file, copy_of, instruction) if one is not None]
    is_of_file = file is not None and name is None and not definition
    if len(ways) != 1 or (name is None and not is_of_file) or (file is not None and not is_of_file):
        raise UsageError("Give NAME with --instruction TEXT or --copy-of OTHER, or -f FILE.")
    actions = _at(context, url, bearer)
    if file is not None:
        actions.create_from(file, dry_run=dry_run)
    else:
        actions.create(str(name), definition, instruction, copy_of, dry_run=dry_run)


@agents.command()
def get(
    context: typer.Context,
    name: AgentArgument,
    output: Annotated[Literal["yaml", "json"], typer.Option("--output", "-o", help="The form.")] = "yaml",
    version: Annotated[int | None, typer.Option(min=1, help="An earlier version of its definition.")] = None,
    url: UrlOption = None,
    bearer: BearerOption = None,
) -> None:
    """Show an agent: as YAML for `apply`, or all that the gateway says about it as JSON."""
    _at(context, url, bearer).get(name, output, version)


@agents.command()
def edit(context: typer.Context, name: AgentArgument, url: UrlOption = None, bearer: BearerOption = None) -> None:
    """Change an agent of the database in your editor ($VISUAL, $EDITOR)."""
    _at(context, url, bearer).edit(name)


@agents.command()
def give(
    context: typer.Context,
    name: AgentArgument,
    owner: Annotated[
        list[str], typer.Argument(metavar="OWNER", help="key:NAME, anonymous, or ISSUER SUBJECT of tokens.")
    ],
    url: UrlOption = None,
    bearer: BearerOption = None,
) -> None:
    """Hand an agent of the database over to another owner."""
    _at(context, url, bearer).give(name, owner)


@agents.command()
def delete(
    context: typer.Context,
    name: AgentArgument,
    url: UrlOption = None,
    bearer: BearerOption = None,
    *,
    threads: Annotated[bool, typer.Option("--threads", help="Delete the threads with it, of all callers.")] = False,
    yes: YesOption = False,
) -> None:
    """Delete an agent of the database."""
    _at(context, url, bearer).delete(name, threads=threads, yes=yes)


@agents.command()
def versions(
    context: typer.Context,
    name: AgentArgument,
    url: UrlOption = None,
    bearer: BearerOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the versions of an agent of the database, the newest first."""
    _at(context, url, bearer).versions(name, as_json=as_json)


@agents.command()
def restore(
    context: typer.Context,
    name: AgentArgument,
    number: VersionArgument,
    url: UrlOption = None,
    bearer: BearerOption = None,
) -> None:
    """Make a new version of an agent with the definition of an earlier one."""
    _at(context, url, bearer).restore(name, number)


def _at(context: typer.Context, url: str | None = None, bearer: str | None = None) -> AgentActions:
    """Return the commands at the gateway that the options name, those after the command first."""
    from pallas_gateway.client.agents.actions import AgentActions  # noqa: PLC0415  a dozen modules that --help needs not

    url_before, bearer_before = context.obj
    return AgentActions(gateway_url(url or url_before), bearer or bearer_before)
