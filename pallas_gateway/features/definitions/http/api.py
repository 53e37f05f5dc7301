"""`/api/v1/agents`: routes, and what each does.

Agents of files are shown here and changed in `agents.yaml`. Those of the database are read from it for each request, so
that a caller reads what it has written, at every worker; other APIs serve a change when their process has taken it up.
"""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, override
from urllib.parse import quote

from starlette.responses import JSONResponse, Response

from pallas_gateway.config.loading.cross_checks import AGENT_NAME
from pallas_gateway.doors.api import requests as api_requests
from pallas_gateway.doors.api.base import Api, operation
from pallas_gateway.doors.api.errors import ApiError, response_to
from pallas_gateway.doors.api.models import Nothing, parsed
from pallas_gateway.doors.api.requests import owner_of
from pallas_gateway.doors.http import access, refusals
from pallas_gateway.errors import GatewayError
from pallas_gateway.features.definitions.http import PREFIX, answers, may_use, models, requests
from pallas_gateway.features.definitions.http.rights import Asked, RightsGate
from pallas_gateway.features.definitions.records import (
    AgentInUseError,
    AgentNotFoundError,
    InvalidDefinitionError,
    NameTakenError,
    Place,
    VersionConflictError,
)
from pallas_gateway.features.definitions.service import Editor
from pallas_gateway.identity.decision import Action
from pallas_gateway.identity.grants import CREATE_AGENTS, DELETE_AGENTS, EDIT_AGENTS
from pallas_gateway.shared.database.errors import DatabaseUnavailableError
from pallas_gateway.telemetry.redaction import cleaned, quoted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from starlette.requests import Request

    from pallas_gateway.core.gateway import Gateway
    from pallas_gateway.core.hosted_agent import HostedAgent
    from pallas_gateway.features.definitions.feature import DefinitionsFeature
    from pallas_gateway.features.definitions.http.answers import Json
    from pallas_gateway.features.definitions.http.models import Options, VersionOptions
    from pallas_gateway.features.definitions.records import Definition, StoredAgent
    from pallas_gateway.identity.caller import Caller
    from pallas_gateway.identity.grants import Grants


LONGEST_WAIT_SECONDS = 30.0
"""Of a change with `wait`, after which the answer shows by `runningVersion` that it is not in use yet."""
MERGE_PATCH = "application/merge-patch+json"
GRANT_OF = {
    "create_agent": CREATE_AGENTS,
    "change_agent": EDIT_AGENTS,
    "restore_agent": EDIT_AGENTS,
    "delete_agent": DELETE_AGENTS,
}
"""The changes, as the audit log names them, with the grant that allows each to callers that do not own the agent."""
_IN_A_FILE = "change it there, or copy it (copyOf) to an agent of your own."
_NO_FACTS: Mapping[str, str] = MappingProxyType({})
_log = logging.getLogger("pallas.agents")


class InUseError(ApiError):
    """Other agents have the agent as their sub-agent; `users` are those of them that the caller may view."""

    reason = "agent_in_use"

    def __init__(self, name: str, users: Sequence[str], viewer: Grants) -> None:
        self.users = [one for one in users if viewer.may_view(one)]
        hidden = len(users) - len(self.users)
        more = [f"{hidden} more that you may not see"] if hidden else []
        super().__init__(f"Agent '{name}' is a sub-agent of {', '.join([*self.users, *more])}. Change these first.")


class AgentsApi(Api):
    """The routes of agents."""

    def __init__(self, gateway: Gateway, feature: DefinitionsFeature) -> None:
        super().__init__(gateway)
        self._definitions = feature.definitions
        self._drop_threads = feature.drop_threads

    @override
    def failed(self, error: GatewayError) -> Response:
        about: dict[str, Any] = {}
        if isinstance(error, InvalidDefinitionError):
            places = [{"path": cleaned(one.path), "message": cleaned(one.message)} for one in error.problems]
            said = f"The definition has {len(places)} problem(s): {cleaned(str(error))}"
            about |= {"problems": places, "error_description": said}
        if isinstance(error, InUseError):
            about["users"] = error.users
        return response_to(error, about=about)

    @operation(
        "GET", PREFIX, "listAgents", "The agents that the caller may see, of files and of the database.",
        requires="`view` of the agents", answer=models.Agents, says="All of them.",
    )  # fmt: skip
    async def _list(self, request: Request) -> Response:
        caller = await access.caller_of(self._gateway, request.scope)
        shown, is_complete = await self._shown_to(caller)
        if not shown and not caller.authenticated and self._gateway.authenticator is not None:
            return refusals.without_token(self._gateway, request.scope)
        return JSONResponse({"agents": shown, **({} if is_complete else {"incomplete": True})})

    async def _shown_to(self, caller: Caller) -> tuple[list[answers.Json], bool]:
        """Return the agents that a caller may view, and whether these are all.

        While the database is away, they are those that this process has.
        """
        hosted = caller.grants.viewed(self._gateway.agents).values()
        shown = [answers.of_file(one) for one in hosted if not one.id]
        if self._why_not_managed is not None:
            return shown, True
        try:
            stored = (await self._definitions.snapshot()).agents
        except DatabaseUnavailableError:
            known = [answers.hosted_of_database(one) for one in hosted if one.id]
            return shown + known, not self._gateway.lacks_stored_agents
        visible = [one for one in stored if Asked.of(one.name, caller, one).may(Action.VIEW)]
        return shown + [answers.of_database(one, *self._hosted(one)) for one in visible], True

    @operation(
        "GET", f"{PREFIX}_may_use", "readAgentsMayUse",
        "What definitions may use, for callers that may create agents or edit one.",
        requires="`create:agents`, or `edit:agents` of an agent", answer=models.AgentsMayUse,
        says="What the operator has released, with what is known of it.",
    )  # fmt: skip
    async def _may_use(self, request: Request) -> Response:
        caller = await access.caller_of(self._gateway, request.scope)
        if not may_use.concerns(caller):
            RightsGate(self._gateway, request).require(Action.CREATE, caller, None)
        self._refuse_unmanaged()
        return JSONResponse(may_use.document(self._gateway, caller))

    @operation(
        "GET", f"{PREFIX}/{{name}}", "getAgent",
        "One agent with its definition, and the schema of the parameters that its callers may set.",
        requires="`view` of the agent; for `instruction` owner, or `view:instructions`", answer=models.WholeAgent,
        says="The agent. Its ETag is that of the definition, for `If-Match` of changes.", headers=("ETag",),
    )  # fmt: skip
    async def _get(self, request: Request, name: str) -> Response:
        asked = await self._seen(request, name)
        document, etag = await self._document_of_file(asked) if asked.stored is None else self._document(asked)
        # Never 304: the ETag is that of the definition, for `If-Match`; the state changes without it.
        return JSONResponse(document, headers={"ETag": etag, "Vary": "Authorization"})

    @operation(
        "GET", f"{PREFIX}/{{name}}/versions", "listAgentVersions",
        "The versions of an agent of the database, the newest first.", requires="`view` of the agent",
        answer=models.AgentVersions, says="All of them.",
    )  # fmt: skip
    async def _versions(self, request: Request, name: str) -> Response:
        asked = await self._seen_in_database(request, name)
        return JSONResponse(answers.versions(await self._definitions.versions(asked.name)))

    @operation(
        "GET", f"{PREFIX}/{{name}}/versions/{{version}}", "getAgentVersion",
        "One version of an agent of the database.",
        requires="`view` of the agent; for `instruction` owner, or `view:instructions`",
        answer=models.AgentVersion, says="The version.",
    )  # fmt: skip
    async def _version(self, request: Request, name: str, number: str) -> Response:
        asked = await self._seen_in_database(request, name)
        found = await self._definitions.version(name, requests.version(number, name))
        return JSONResponse(answers.whole_version(found, shows_instruction=asked.may(Action.READ_INSTRUCTION)))

    @operation(
        "GET", f"{PREFIX}/{{name}}/possible-owners", "listPossibleOwners",
        "Callers that may become the owner: those that have opened the console.",
        requires="the owner, or `edit:agents` and `delete:agents`", answer=models.PossibleOwners,
        says="At most 100.", errors=(409,),
    )  # fmt: skip
    async def _possible_owners(self, request: Request, name: str) -> Response:
        await self._to_change(request, name, Action.HAND_OVER)
        return JSONResponse(answers.possible_owners(await self._definitions.callers()))

    @operation(
        "GET", f"{PREFIX}/{{name}}/ratings", "readAgentRatings",
        "How callers have rated the answers of an agent, without who they are.",
        requires="the owner, or `edit:agents`", answer=models.Ratings,
        says="Counts, and the notes whose writers have let the owner read them.", errors=(409,),
    )  # fmt: skip
    async def _ratings(self, request: Request, name: str) -> Response:
        asked = await self._to_change(request, name, Action.EDIT, "its ratings are in the export of cases.")
        return JSONResponse(answers.ratings(await self._definitions.ratings(asked.of_database)))

    @operation(
        "POST", PREFIX, "createAgent",
        "Make an agent in the database, or copy a declared one (`copyOf`) with changes.", requires="`create:agents`",
        query=models.VersionOptions, body=models.NewAgent, answer=models.WholeAgent, status=HTTPStatus.CREATED,
        says="The new agent.",
        dry_run_says="With `dry_run`, the agent as it would be.",
        headers=("ETag", "Location"), errors=(409, 422),
    )  # fmt: skip
    async def _post(self, request: Request, options: VersionOptions) -> Response:
        caller = await access.caller_of(self._gateway, request.scope)
        RightsGate(self._gateway, request).require(Action.CREATE, caller, None)
        self._refuse_unmanaged()
        owner_of(caller)
        body = requests.without_shown_only(await self._body(request))
        name, source = body.pop("name", None), body.pop("copyOf", None)
        create = partial(self._definitions.create, name, body)
        with self._noting_refusals(caller, "create_agent", None, options):
            requests.take_own(body, caller)
            if source is not None:
                await self._refuse_copy(request, caller, source)
                create = partial(self._definitions.copy, source, name, body)
            editor = self._editor(caller, await self._rights_of(caller), options.why)
            stored = await create(editor, dry_run=options.dry_run)
        return await self._changed(caller, stored, "create_agent", options)

    @operation(
        "PUT", f"{PREFIX}/{{name}}", "replaceAgent",
        "Give an agent another definition, as a new version. Keys that are left out get their defaults.",
        requires="the owner, or `edit:agents`", query=models.VersionOptions, body=models.ChangedAgent,
        conditional=True, answer=models.WholeAgent, says="The agent as stored; with `dry_run` without an ETag.",
        headers=("ETag",), errors=(409, 412, 422, 428),
    )  # fmt: skip
    async def _put(self, request: Request, name: str, options: VersionOptions) -> Response:
        return await self._change(request, name, options, self._definitions.replace)

    @operation(
        "PATCH", f"{PREFIX}/{{name}}", "patchAgent",
        "Change keys of an agent's definition (RFC 7396), as a new version; null removes a key.",
        requires="the owner, or `edit:agents`", query=models.VersionOptions, body=Any, patches=True,
        conditional=True, answer=models.WholeAgent, says="The agent as stored; with `dry_run` without an ETag.",
        headers=("ETag",), errors=(409, 412, 422, 428),
    )  # fmt: skip
    async def _patch(self, request: Request, name: str, options: VersionOptions) -> Response:
        return await self._change(request, name, options, self._definitions.patch, MERGE_PATCH)

    async def _change(
        self,
        request: Request,
        name: str,
        options: VersionOptions,
        change: Callable[..., Awaitable[StoredAgent]],
        *types: str,
    ) -> Response:
        """Make a new version by a method of `Definitions`; `types` are those of a patch besides JSON."""
        asked = await self._to_change(request, name, Action.EDIT)
        expected, body = self._expected(request, asked), await self._body(request, *types)
        with self._noting_refusals(asked.caller, "change_agent", name, options):
            requests.take_name(body, name)
            if (owner := requests.take_owner(body, asked.of_database)) is not None:
                RightsGate(self._gateway, request).require(Action.HAND_OVER, asked.caller, name)
                auth = self._gateway.configuration.deployment.gateway.auth
                requests.refuse_unknown_key(owner, [key.name for key in auth.tokens] if auth is not None else [])
                owner = replace(owner, name=(await self._definitions.callers()).get(owner.owner, owner.name))
            actions = (Action.EDIT, *([Action.HAND_OVER] if owner else []))
            editor = self._editor(asked.caller, await self._rights_of(asked.caller), options.why, *actions)
            shown = answers.shown_defaults(asked.of_database)
            written = body if types else requests.without_shown_only(body, shown)
            editor = replace(editor, gives_to=owner)
            stored = await change(name, written, editor, expected=expected, dry_run=options.dry_run)
        given = {"new_owner": owner.principal} if owner is not None else {}
        return await self._changed(asked.caller, stored, "change_agent", options, given)

    @operation(
        "POST", f"{PREFIX}/{{name}}/versions/{{version}}/restore", "restoreAgentVersion",
        "Make a new version with the definition of an earlier one.",
        requires="the owner, or `edit:agents`", query=models.VersionOptions,
        body=Nothing, body_required=False, conditional=True,
        answer=models.WholeAgent, says="The agent as stored; with `dry_run` without an ETag.", headers=("ETag",),
        errors=(409, 412, 422, 428),
    )  # fmt: skip
    async def _restore(self, request: Request, name: str, number: str, options: VersionOptions) -> Response:
        asked = await self._to_change(request, name, Action.EDIT)
        expected, wanted = self._expected(request, asked), requests.version(number, name)
        parsed(Nothing, await self._body(request))
        with self._noting_refusals(asked.caller, "restore_agent", name, options):
            editor = self._editor(asked.caller, await self._rights_of(asked.caller), options.why, Action.EDIT)
            stored = await self._definitions.restore(name, wanted, editor, expected=expected, dry_run=options.dry_run)
        return await self._changed(asked.caller, stored, "restore_agent", options)

    @operation(
        "DELETE", f"{PREFIX}/{{name}}", "deleteAgent",
        "Delete an agent, unless another one has it as its sub-agent. Its threads stay with their owners.",
        requires="the owner, or `delete:agents`", query=models.DeleteOptions, conditional=True,
        status=HTTPStatus.NO_CONTENT, says="It is not there any more.", errors=(409, 412, 428),
    )  # fmt: skip
    async def _delete(self, request: Request, name: str, options: models.DeleteOptions) -> Response:
        threads, dry_run = options.threads == "delete", options.dry_run
        asked = await self._to_change(request, name, Action.DELETE)
        actions = (Action.DELETE, *([Action.DELETE_THREADS] if threads else []))
        RightsGate(self._gateway, request).require(actions[-1], asked.caller, name)
        expected = self._expected(request, asked)
        with self._noting_refusals(asked.caller, "delete_agent", name, options):
            rights = await self._rights_of(asked.caller)
            editor = self._editor(asked.caller, rights, None, *actions)
            try:
                stored = await self._definitions.remove(
                    name, editor, expected=expected, drops_threads=threads, dry_run=dry_run
                )
            except AgentInUseError as error:
                raise InUseError(name, error.users, rights) from error
        self._note(asked.caller, "delete_agent", options, stored, {"threads": "delete"} if threads else {})
        if threads and not dry_run:
            await self._drop_threads()
        await self._wait(stored, options)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _seen(self, request: Request, name: str) -> Asked:
        """Return an agent that the caller may view.

        Raises:
            RefusedError: 401.
            ApiError: `not_found`.
        """
        caller = await access.caller_of(self._gateway, request.scope, agent=name)
        asked = await self._asked(name, caller)
        exists = asked.stored is not None or self._is_of_file(name)
        try:
            RightsGate(self._gateway, request).require(Action.VIEW, asked.caller, name, exists=exists)
        except ApiError as error:
            if not (why := self._why_claimed(name, caller)):
                raise
            raise ApiError(f"{error}. {why}", reason=error.reason) from error
        if not exists:
            raise ApiError(refusals.no_agent(name), reason="not_found")
        return asked

    async def _seen_in_database(self, request: Request, name: str) -> Asked:
        asked = await self._seen(request, name)
        self._refuse_unmanaged()
        if asked.stored is None:
            raise ApiError(f"Agent '{name}' is of agents.yaml, which keeps no versions.", reason="not_found")
        return asked

    async def _to_change(self, request: Request, name: str, action: Action, instead: str = _IN_A_FILE) -> Asked:
        """Return an agent of the database that the caller may change by `action`; `instead`: what to do with others."""
        asked = await self._seen(request, name)
        self._refuse_unmanaged()
        if asked.stored is None:
            why = self._why_claimed(name, asked.caller)
            raise ApiError(f"Agent '{name}' is of agents.yaml; {instead} {why}".strip(), reason="agent_of_file")
        RightsGate(self._gateway, request).require(action, asked.caller, name)
        return asked

    async def _asked(self, name: str, caller: Caller) -> Asked:
        """Return an agent as it is now; `stored` is None also if there is none."""
        stored = None
        # Other names are in no database, and some of them not even text for it.
        if not self._is_of_file(name) and self._why_not_managed is None and AGENT_NAME.fullmatch(name):
            with suppress(AgentNotFoundError):
                stored = await self._definitions.find(name)
        return Asked.of(name, caller, stored)

    def _is_of_file(self, name: str) -> bool:
        hosted = self._gateway.agents.get(name)
        return hosted is not None and not hosted.id

    def _why_claimed(self, name: str, caller: Caller) -> str:
        """Return why an agent of the database is out of reach by its name, if the caller may know of it; else ''."""
        claimed = self._gateway.configuration.claimed.get(name)
        if claimed is None or not self._is_of_file(name):
            return ""
        may_know = caller.among({name: claimed.owner}).grants.may_view(name)
        why = f"The agent '{name}' of the database cannot be read or changed while {claimed.refused}."
        return why if may_know else ""

    def _hosted(self, stored: StoredAgent) -> tuple[HostedAgent | None, str | None]:
        """Return an agent of the database as this process has it, and why it is not hosted under its name."""
        hosted, claimed = self._gateway.agents.get(stored.name), self._gateway.configuration.claimed.get(stored.name)
        refused = claimed.refused if claimed is not None and claimed.id == stored.id else None
        return (hosted if hosted is not None and hosted.id == stored.id else None), refused

    def _document(self, asked: Asked) -> tuple[Json, str]:
        """Return an agent of the database, and its ETag."""
        stored = asked.of_database
        shows = asked.may(Action.READ_INSTRUCTION)
        return answers.whole_of_database(stored, *self._hosted(stored), shows_instruction=shows), _etag(stored)

    async def _document_of_file(self, asked: Asked) -> tuple[Json, str]:
        """Return an agent of a file, and the ETag of its definition as the caller may read it."""
        hosted = self._gateway.agents[asked.name]
        definition: Definition = {}
        with suppress(InvalidDefinitionError):  # it has none
            definition = await self._definitions.declared(asked.name)
        shows = asked.may(Action.READ_INSTRUCTION)
        document = answers.whole_of_file(hosted, definition, shows_instruction=shows)
        # A digest of what is hidden would let its reader try texts until one has it.
        shown = {key: value for key, value in document.items() if key not in requests.ONLY_SHOWN}
        digest = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
        return document, f'"{digest[:32]}"'

    @property
    def _why_not_managed(self) -> str | None:
        """Return why this gateway has no agents of the database, None if it has."""
        configuration = self._gateway.configuration
        if not configuration.per_port:
            return None
        how = "--agent" if configuration.only_agent is not None else "a port for each agent (gateway.per_port)"
        return f"A gateway with {how} serves no agents of the database, so there are none to change."

    def _refuse_unmanaged(self) -> None:
        if (why := self._why_not_managed) is not None:
            raise ApiError(why, reason="not_found")

    async def _refuse_copy(self, request: Request, caller: Caller, source: object) -> None:
        """Refuse to copy an agent whose instruction the caller may not read."""
        if not isinstance(source, str):
            raise InvalidDefinitionError([Place("copyOf", "must be the name of an agent")])
        asked = await self._asked(source, caller)
        if (asked.stored is None and not self._is_of_file(source)) or not asked.may(Action.VIEW):
            raise InvalidDefinitionError([Place("copyOf", f"no agent {quoted(source)}")])
        RightsGate(self._gateway, request).require(Action.READ_INSTRUCTION, asked.caller, source)

    def _expected(self, request: Request, asked: Asked) -> int | None:
        """Return the version that the request is about, None for any.

        Raises:
            ApiError: `precondition_required`, `bad_input`.
            VersionConflictError: the agent has another version.
        """
        tags, stored = requests.required_tags(request.headers.getlist("if-match")), asked.of_database
        if tags is None:
            return None
        if _etag(stored) not in tags:  # a weak tag is not equal to it
            raise VersionConflictError(asked.name, stored.version)
        return stored.version

    async def _rights_of(self, caller: Caller) -> Grants:
        """Return the rights of a caller on all agents of the database as they are now."""
        owners = await self._definitions.owners()
        return caller.among({name: owner for name, owner in owners.items() if not self._is_of_file(name)}).grants

    def _editor(self, caller: Caller, rights: Grants, why: str | None, *actions: Action) -> Editor:
        """Return the caller as an editor, who must have the right to `actions` also when the change is written."""

        def permit(agent: StoredAgent) -> None:
            if not all(Asked.of(agent.name, caller, agent).may(action) for action in actions):
                raise ApiError("The agent was given to another owner meanwhile.", reason="not_owner")

        owner, reason = caller.owner or "", (why or "").strip() or None
        return Editor(owner=owner, name=caller.name, may_run=rights.may_run, why=reason, permit=permit)

    async def _body(self, request: Request, *types: str) -> Json:
        return api_requests.json_object(await self.read(request, *types, most=requests.LARGEST_BODY))

    async def _changed(
        self, caller: Caller, stored: StoredAgent, action: str, options: Options, about: Mapping[str, str] = _NO_FACTS
    ) -> Response:
        self._note(caller, action, options, stored, about)
        await self._wait(stored, options)
        document, etag = self._document(Asked.of(stored.name, caller, stored))
        del document["paramsSchema"]
        headers = {} if options.dry_run else {"ETag": etag}
        if options.dry_run or action != "create_agent":
            return JSONResponse(document, headers=headers)
        headers["Location"] = self._gateway.addresses.absolute(f"{PREFIX.removeprefix('/')}/{quote(stored.name)}")
        return JSONResponse(document, HTTPStatus.CREATED, headers)

    async def _wait(self, stored: StoredAgent, options: Options) -> None:
        """Wait until this process uses a change, or has refused it, if the client asks for that."""
        if options.wait and not options.dry_run:
            await self._gateway.until_applied(stored.name, LONGEST_WAIT_SECONDS)

    def _note(
        self, caller: Caller, action: str, options: Options, stored: StoredAgent, about: Mapping[str, str]
    ) -> None:
        """Write a change to the audit log, with the facts `about` it."""
        if options.dry_run:
            return
        grant = caller.grants.deciding(GRANT_OF[action], stored.name)
        facts = {"caller": caller.principal, "address": caller.address, "agent": stored.name, **about}
        self._gateway.trail.record(action, "accepted", {**facts, "grant": grant, "version": stored.version})
        # An [agent of the database](../use/agents-as-data.md) was stored; `change` as in the [audit
        # log](audit.md#actions).
        _log.info("agent changed", extra={**facts, "change": action, "version": stored.version})

    @contextmanager
    def _noting_refusals(self, caller: Caller, action: str, name: str | None, options: Options) -> Iterator[None]:
        """Write refused changes to the audit log, but for those that were only checked; `name` is of a known agent."""
        try:
            yield
        except GatewayError as error:
            if not options.dry_run:
                known = error.taker if isinstance(error, NameTakenError) else name
                self._gateway.refused_requests.record(error.reason, caller, {"agent": known}, action)
            raise


def _etag(stored: StoredAgent) -> str:
    """Return the ETag of a version; the numbers of a name are not used again."""
    return f'"{stored.version}"'
