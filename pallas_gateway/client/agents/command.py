"""`pallas-gateway agents` and its commands."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from pallas_gateway.calls.parameters import schemas_by_name
from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.agents.agents_api import AgentsApi, DefinedAgent, outcome
from pallas_gateway.client.agents.applying import NOTHING, make, ordered, planned
from pallas_gateway.client.agents.exporting import text_of
from pallas_gateway.client.agents.listing import show
from pallas_gateway.client.call_settings import values_of
from pallas_gateway.client.calls_view import shown
from pallas_gateway.client.definition_files import definitions_of
from pallas_gateway.client.differences import is_wanted, show_difference
from pallas_gateway.client.gateway_api import ApiRefusedError
from pallas_gateway.client.gateway_client import BearerOption
from pallas_gateway.client.output import problem, result, table
from pallas_gateway.client.usage import UsageError, message_text
from pallas_gateway.config.problems import ConfigurationError, Problem
from pallas_gateway.config.yaml.definitions import left_out_lines
from pallas_gateway.config.yaml.editing import rendered

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
        show(gateway_url(url), bearer, as_json=as_json)


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
    api = _api(context, url, bearer)
    if file is not None:
        _create_from(api, file, dry_run=dry_run)
        return
    if instruction is not None:
        definition["instruction"] = message_text(instruction, has_images=False)
    try:
        document = api.create(str(name), definition, copy_of=copy_of, dry_run=dry_run)
    except ApiRefusedError as error:
        if not error.problems:
            raise
        raise ConfigurationError(Problem("", None, path, message) for path, message in error.problems) from error
    if dry_run:
        problem(f"{NOTHING}: --dry-run")
    else:
        result(outcome(f"added {name}", document))


def _create_from(api: AgentsApi, file: str, *, dry_run: bool) -> None:
    wanted = definitions_of(file)
    changes = ordered(planned(api, wanted, new_only=True))
    for line in left_out_lines(wanted):
        problem(line)
    if dry_run:
        for one in changes:
            one.show()
        problem(f"{NOTHING}: --dry-run")
        return
    make(api, wanted, changes)


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
    api = _api(context, url, bearer)
    agent = api.get(name)
    if version is not None:
        definition = api.version(name, version)
        agent = DefinedAgent(agent.name, agent.etag, definition, {**agent.document, "version": version})
    if output == "json":
        document = agent.document if version is None else {"name": agent.name, "version": version, **agent.definition}
        result(json.dumps(document, indent=2, ensure_ascii=False))
        return
    facts = agent.facts if version is None else f"Agent '{agent.name}', {agent.version}"
    result(f"# {facts}\n{text_of(agent)}".removesuffix("\n"))


@agents.command()
def edit(context: typer.Context, name: AgentArgument, url: UrlOption = None, bearer: BearerOption = None) -> None:
    """Change an agent of the database in your editor ($VISUAL, $EDITOR)."""
    from pallas_gateway.client.agents import editing  # noqa: PLC0415  starts an editor; no other command uses it

    editing.edit(_api(context, url, bearer), name)


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
    if len(owner) not in (1, 2):
        raise UsageError("OWNER is key:NAME, anonymous, or ISSUER SUBJECT.")
    api = _api(context, url, bearer)
    agent = api.get(name)
    api.give(agent, owner[0] if len(owner) == 1 else {"issuer": owner[0], "subject": owner[1]})
    result(f"gave {agent.name} to {' '.join(owner)}; without a grant for it you may no longer see it")


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
    api = _api(context, url, bearer)
    agent = api.get(name)
    with_threads = " and all threads with it" if threads else ""
    question = f"Delete {agent.name} ({agent.version}){with_threads} at {api.url}?"
    if not yes and not is_wanted(question, can_ask=True, nothing="nothing was deleted", yes_does="deletes it"):
        raise typer.Exit(1)
    api.delete(agent, threads=threads)
    result(f"deleted {agent.name}{with_threads}")


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
    found = _api(context, url, bearer).versions(name)
    if as_json:
        result(json.dumps({"versions": found}, indent=2))
        return
    rows = [tuple(shown(one.get(key)) for key in ("version", "editor", "updatedAt")) for one in found]
    table("VERSION", "EDITOR", "UPDATED (UTC)", rows=rows)


@agents.command()
def restore(
    context: typer.Context,
    name: AgentArgument,
    number: VersionArgument,
    url: UrlOption = None,
    bearer: BearerOption = None,
) -> None:
    """Make a new version of an agent with the definition of an earlier one."""
    api = _api(context, url, bearer)
    agent = api.get(name)
    earlier = api.version(name, number)
    document = api.restore(agent, number)
    show_difference(rendered({agent.name: dict(agent.definition)}), rendered({agent.name: earlier}), agent.name)
    result(outcome(f"restored version {number} of {agent.name}", document))


def _api(context: typer.Context, url: str | None, bearer: str | None) -> AgentsApi:
    url_before, bearer_before = context.obj
    return AgentsApi(gateway_url(url or url_before), bearer or bearer_before)
