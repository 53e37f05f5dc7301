"""Unknown names in `agents.yaml`: keys, agents, models and folders. Warnings only, because these may come later.

Agents of the database count as known, and so do models that callers may choose.
"""

from collections.abc import Collection, Iterator
from urllib.parse import unquote

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.loading.tool_policies import of_no_server, policies
from pallas_gateway.config.model.values import GRANT, WILDCARD
from pallas_gateway.config.problems import Problem, did_you_mean

_KEY = "key:"
_SQLITE = "sqlite:///"


def unknown_names(configuration: Configuration) -> Iterator[Problem]:
    """Yield a warning for each name that the files alone show to be unknown."""
    yield from _limits(configuration)
    yield from _grants(configuration)
    yield from _floors(configuration)
    yield from _folders(configuration)


def unknown_models(configuration: Configuration, models: Collection[str]) -> Iterator[Problem]:
    """Yield a warning for each price of a model that is none of `models`, those of all agents.

    Each of these is named with its provider and without. With agents of the database, any model may be used later.
    """
    if configuration.deployment.gateway.database is not None:
        return
    for name in configuration.deployment.gateway.prices:
        if name not in models:
            yield configuration.problem(
                f"gateway.prices.{name}", f"no agent uses this model{did_you_mean(name, models)}"
            )


def _limits(configuration: Configuration) -> Iterator[Problem]:
    gateway = configuration.deployment.gateway
    keys = [key.name for key in gateway.auth.tokens] if gateway.auth else []
    for index, rule in enumerate(gateway.limits.rules):
        path, key = f"gateway.limits.rules.{index}", rule.caller.removeprefix(_KEY)
        if rule.caller.startswith(_KEY) and not WILDCARD.search(key) and key not in keys:
            yield configuration.problem(
                f"{path}.caller", f"no key '{key}' in gateway.auth.tokens{did_you_mean(key, keys)}"
            )
        if not WILDCARD.search(rule.agent):
            yield from _agent(configuration, f"{path}.agent", rule.agent)


def _grants(configuration: Configuration) -> Iterator[Problem]:
    if (auth := configuration.deployment.gateway.auth) is None:
        return
    granted = {f"gateway.auth.tokens.{index}.grants": key.grants for index, key in enumerate(auth.tokens)}
    for path, grants in {**granted, "gateway.auth.anonymous": auth.anonymous}.items():
        for index, grant in enumerate(grants):
            match = GRANT.fullmatch(grant)
            if match and match["agent"] is not None:
                yield from _agent(configuration, f"{path}.{index}", match["agent"])


def _agent(configuration: Configuration, path: str, name: str) -> Iterator[Problem]:
    agents = configuration.deployment.agents
    if name not in agents and configuration.deployment.gateway.database is None:
        yield configuration.problem(path, f"no agent '{name}'{did_you_mean(name, agents)}")


def _floors(configuration: Configuration) -> Iterator[Problem]:
    """Approvals of agents of the database; these can be servers of each other."""
    servers = {*configuration.fastagent.servers, *configuration.deployment.agents}
    for place, message in of_no_server(policies(configuration.deployment.gateway.agents_may_use.approve, ()), servers):
        yield configuration.problem(f"gateway.agents_may_use.{place}", message)


def _folders(configuration: Configuration) -> Iterator[Problem]:
    gateway = configuration.deployment.gateway
    database = gateway.database and unquote(gateway.database.removeprefix(_SQLITE))
    for key, value in {"database": database, "audit_log": gateway.audit_log}.items():
        if value is None or value == "-" or value.startswith(("syslog:", "postgres")):
            continue
        folder = (configuration.folder / value).parent
        if not folder.is_dir():
            yield configuration.problem(f"gateway.{key}", f"no folder {folder}; the gateway makes none")
