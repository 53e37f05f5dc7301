"""Defaults, limits, variables and keys of `_meta` that documents state are those of the code."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from pallas_gateway.config.model.downstreams import Forwarding, ProcessSettings, TokenExchangeSettings
from pallas_gateway.identity import grants
from pallas_gateway.limits import GatewayLimits, RuntimeLimits
from tests.support.documents import files, name_of, pages
from tests.unit.config.configuration_page import SECTIONS

MODELS: tuple[type[BaseModel], ...] = (*(model for _, model in SECTIONS), Forwarding, ProcessSettings)
STATED = re.compile(
    r"`(?:[\w<>]+\.)*(?P<name>[a-z_]+)`"  # the setting, and its default in the same sentence or cell
    r"(?:[^`.]|\.\d)*?"
    r"(?:\(default:? (?P<a>\d+)|, default (?P<b>\d+)|\b(?P<c>\d+) by default|\bdefault of (?P<d>\d+))"
)
STATED_BEFORE = re.compile(r"default of `(?:[\w<>]+\.)*(?P<name>[a-z_]+)` \((?P<a>\d+)")
GATEWAY, RUNTIME = GatewayLimits(), RuntimeLimits()
MB, KB = 1024 * 1024, 1024
LIMITS = {
    "docs/use/threads.md": (
        f"413 if they have more than {GATEWAY.threads.copied_bytes // MB} MB",
        f"at most {GATEWAY.threads.searched_threads:,} threads or {GATEWAY.threads.searched_bytes // MB} MB",
        f"at most {GATEWAY.threads.replayed_turns:,} turns and {GATEWAY.threads.replayed_bytes // MB} MiB",
        f"\n{GATEWAY.threads.step_bytes // KB} KB, and ",
    ),
    "docs/operate/health.md": (
        f"for at most {GATEWAY.health.probe_seconds:g} s each",
        f"within {GATEWAY.health.fresh_seconds:g} s after them",
        f"is not started again for {GATEWAY.health.program_fresh_seconds:g} s",
        f"the {RUNTIME.programs.start_seconds:g} s to start that calls and `check --online` wait for it",
        f"at most {RUNTIME.listings.credentials:,} tokens (as keyed hashes) and {RUNTIME.listings.kept_bytes // MB} MB",
        f"at most {RUNTIME.listings.fresh_seconds:g} s old while there are calls",
        f"has {RUNTIME.listings.ask_seconds:g} s to list again",
        f"requested again at most every {RUNTIME.listings.again_seconds:g} s",
        f"A socket is not used after {RUNTIME.listings.keep_alive_seconds:g} s",
        f"\n{GATEWAY.lives.last_retry_seconds:g} s (less up to a quarter",
    ),
    "docs/operate/stdio-servers.md": (
        f"Further calls wait up to {RUNTIME.programs.start_seconds:g} s for one",
        f"waited for a process for {RUNTIME.programs.patience_seconds:g} s",
        f"does not answer within {RUNTIME.programs.start_seconds:g} s is not started again for "
        f"{RUNTIME.programs.first_pause_seconds:g} s",
        f"up to {RUNTIME.programs.last_pause_seconds:g} s. Calls",
        f"after {RUNTIME.programs.leave_seconds:g} s by SIGTERM, "
        f"after {RUNTIME.programs.leave_seconds:g} s more by SIGKILL",
    ),
    "docs/operate/providers-at-work.md": (
        f"for at most {GATEWAY.health.preflight_seconds:g} s; the listeners",
        f"the waits are about {RUNTIME.llm.first_wait_seconds:g} s",
    ),
}
VARIABLE = re.compile(r"\bPALLAS_[A-Z_]*[A-Z]\b")
OF_EXAMPLES = {"PALLAS_SITE", "PALLAS_PUBLIC_URL", "PALLAS_STATE_KEY", "PALLAS_INGRESS_NETWORK", "PALLAS_PROJECT"}
"""Of the files in deploy/, whose configurations name them."""
OF_NO_READER = {
    "PALLAS_EXAMPLE_PYTHON": "set by the example for its own file",
    "PALLAS_GATEWAYS": "set by deploy/compose.yaml for deploy/caddy/Caddyfile, which has its meaning",
}
GRANT = re.compile(r"\b[a-z]+:(?:agents|metrics|instructions|gateway|calls)\b")
KEY = re.compile(r"[\"'`]pallas/([a-z_]+)[\"'`]")


def stated() -> Iterator[tuple[str, str, int]]:
    """The document, the setting and the default of each sentence that has both."""
    for document, text in pages().items():
        for found in (*STATED.finditer(text), *STATED_BEFORE.finditer(text)):
            (value,) = (one for one in found.groups()[1:] if one)
            yield document, found["name"], int(value)


def defaults_of(name: str) -> set[Any]:
    return {field.default for model in MODELS for key, field in model.model_fields.items() if key == name}


def code(*endings: str) -> str:
    own = (one for one in files(*endings) if name_of(one).startswith(("pallas_gateway/", "deploy/")))
    return "\n".join(one.read_text() for one in own)


def test_the_defaults_that_documents_state_are_those_of_the_models() -> None:
    found = list(stated())
    assert {
        ("warm", 1),
        ("max_processes", 16),
        ("idle_seconds", 300),
        ("health_seconds", 60),
        ("most_agents", 100),
        ("drain_seconds", 30),
        ("max_in_flight", 256),
    } <= {(name, value) for _, name, value in found}
    assert [one for one in found if one[2] not in defaults_of(one[1])] == []


def test_the_table_of_token_exchange_has_the_defaults_of_its_model() -> None:
    section = pages()["docs/operate/token-exchange.md"].split("| key | default | meaning |", 1)[1].split("\n\n", 1)[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))
    fields = TokenExchangeSettings.model_fields
    said = {None: {"none", "the server's URL"}, "basic": {"`basic`"}}
    assert rows.keys() == fields.keys()
    wrong = [
        name
        for name, one in fields.items()
        if rows[name] not in ({"required"} if one.is_required() else said[one.default])
    ]
    assert wrong == []


@pytest.mark.parametrize(("document", "phrase"), [(name, one) for name, phrases in LIMITS.items() for one in phrases])
def test_the_limits_that_documents_state_are_those_of_the_code(document: str, phrase: str) -> None:
    assert re.sub(r"\s+", " ", phrase) in re.sub(r"\s+", " ", pages()[document])


def test_the_variables_that_documents_name_are_those_that_are_read() -> None:
    named = {one for text in pages().values() for one in VARIABLE.findall(text)}
    read = set(VARIABLE.findall(code(".py", ".yaml", "Caddyfile")))
    assert named - read == set()
    assert read - named == OF_NO_READER.keys()
    assert named >= OF_EXAMPLES


def test_the_keys_of_meta_that_documents_name_are_those_of_the_code() -> None:
    named = {one for name, text in pages().items() if name != "docs/upstream.md" for one in KEY.findall(text)}
    used = set(KEY.findall(code(".py")))
    assert (len(named) > 5, named - used, used - named) == (True, set(), set())


def test_the_grants_that_documents_name_are_those_of_the_code() -> None:
    known = {value for value in vars(grants).values() if isinstance(value, str) and GRANT.fullmatch(value)}
    named = {name: set(GRANT.findall(text)) for name, text in pages().items()}
    assert len(known) > 8
    assert set().union(*named.values()) == known
    assert named["docs/operate/security.md"] == known


def test_the_symptoms_of_the_troubleshooting_page_are_messages_of_the_code() -> None:
    cells = "".join(re.findall(r"^\| [^|]+ \|", pages()["docs/operate/troubleshooting.md"], re.MULTILINE))
    known, named = code(".py"), {part for one in re.findall(r"`([^`]+)`", cells) for part in re.split(" ?… ?", one)}
    assert (len(named) > 40, [one for one in named if one not in known]) == (True, [])
