"""`pallas-gateway agents` and its commands."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.agents.agents_api import AgentsApi, DefinedAgent, outcome
from pallas_gateway.client.agents.listing import show
from pallas_gateway.client.calls_view import shown
from pallas_gateway.client.differences import is_wanted, show_difference
from pallas_gateway.client.gateway_client import BearerOption
from pallas_gateway.client.output import problem, result, table
from pallas_gateway.client.usage import UsageError

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
    name: Annotated[str | None, typer.Argument(help="With --copy-of: the new agent.")] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", help="Definitions in YAML; - is stdin.")] = None,
    copy_of: Annotated[str | None, typer.Option("--copy-of", help="The agent to copy.")] = None,
    url: UrlOption = None,
    bearer: BearerOption = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check only, with -f.")] = False,
) -> None:
    """Make the agents of FILE, or NAME as a copy of another; none of them may exist."""
    api = _api(context, url, bearer)
    if (file is None) == (copy_of is None) or (name is None) != (copy_of is None) or (dry_run and file is None):
        raise UsageError("Give -f FILE, or NAME --copy-of OTHER.")
    if copy_of is not None and name is not None:
        document = api.copy(name, copy_of)
        result(outcome(f"added {name}", document))
        return
    from pallas_gateway.client.agents.applying import NOTHING, make, ordered, planned  # noqa: PLC0415  see `edit`
    from pallas_gateway.client.definition_files import definitions_of  # noqa: PLC0415
    from pallas_gateway.config.yaml.definitions import left_out_lines  # noqa: PLC0415

    wanted = definitions_of(str(file))
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
    from pallas_gateway.client.agents.exporting import text_of  # noqa: PLC0415  see `edit`

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
    from pallas_gateway.client.agents import editing  # noqa: PLC0415  most commands need no YAML

    editing.edit(_api(context, url, bearer), name)


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
    from pallas_gateway.config.yaml.editing import rendered  # noqa: PLC0415  see `edit`

    api = _api(context, url, bearer)
    agent = api.get(name)
    earlier = api.version(name, number)
    document = api.restore(agent, number)
    show_difference(rendered({agent.name: dict(agent.definition)}), rendered({agent.name: earlier}), agent.name)
    result(outcome(f"restored version {number} of {agent.name}", document))


def _api(context: typer.Context, url: str | None, bearer: str | None) -> AgentsApi:
    url_before, bearer_before = context.obj
    return AgentsApi(gateway_url(url or url_before), bearer or bearer_before)
