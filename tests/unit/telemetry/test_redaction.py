"""What is taken out of everything the gateway says about itself, and what is left alone."""

import asyncio
import base64
import contextvars
import json
import time
from typing import override
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.config.loading.secret_values import is_secret_name, secret_values
from pallas_gateway.telemetry import redaction
from pallas_gateway.telemetry.redaction import KnownSecrets, cleaned, cleaned_data, cleaned_fields, forms_of, redacted


@pytest.fixture(autouse=True)
def no_configured_secrets(monkeypatch: pytest.MonkeyPatch) -> KnownSecrets:
    known = KnownSecrets()
    monkeypatch.setattr(redaction, "configured", known)
    return known


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Authorization: Bearer abc.def-123, Accept: */*", "Authorization: ****, Accept: */*"),
        ("{'Authorization': 'Bearer x1'}", "{'Authorization': '****'}"),
        ("[(b'authorization', b'Bearer x1'), (b'host', b'a')]", "[(b'authorization', b'****'), (b'host', b'a')]"),
        ('{"authorization":"Basic dTpw"}', '{"authorization":"****"}'),
        ('{\\"authorization\\": \\"Bearer x1\\"}', '{\\"authorization\\": \\"****\\"}'),
        ("Proxy-Authorization: Basic dTpw", "Proxy-Authorization: ****"),
        ("set-cookie: session=abc; Path=/", "set-cookie: ****; Path=/"),
        ("x-api-key: abc1", "x-api-key: ****"),
        ("api_key='abc', model='m'", "api_key='****', model='m'"),
        ("client_secret=abc&grant_type=x", "client_secret=****&grant_type=x"),
        ("rejected Bearer Zm9vYmFy", "rejected Bearer ****"),
        ("rejected bearer%20Zm9vYmFy", "rejected bearer%20****"),
        ("http://ann:pw@host:1/mcp refused", "http://****@host:1/mcp refused"),
        ("GET http://host/mcp?a=1&api_key=abc&b=2", "GET http://host/mcp?a=1&api_key=****&b=2"),
        ("GET http://host/mcp?key=abc#x", "GET http://host/mcp?key=****#x"),
        ("GET http://host/mcp?session_token=abc", "GET http://host/mcp?session_token=****"),
        ("Incorrect API key provided: sk-abcd***wxyz.", "Incorrect API key provided: ****."),
        ("key pgw_0123456789 is revoked", "key **** is revoked"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl expired", "**** expired"),
        ("first\nsk-abcdefgh12", "first\n****"),
        (json.dumps("first\nsk-abcdefgh12\neyJhbGci.eyJzdWIi.sig"), '"first\\n****\\n****"'),
    ],
)
def test_what_looks_like_a_secret_is_hidden(said: str, shown: str) -> None:
    assert redacted(said) == shown


@pytest.mark.parametrize(
    "prose",
    [
        "bearer authentication is off",
        "mcp.servers.a.headers.Authorization: environment variable TOKEN is not set",
        "token_exchange.client_secret: Value error, it is empty",
        "Bearer token expected",
        "a basic misunderstanding",
        "task-management-example, risk-assessment",
        "max_tokens: 100, tokens=input:10",
        "https://example.com/a@b",
        "mail ann@example.com about https://example.com",
        "the secret is out",
        "Unreachable: search, notes",
        "call ended agent=solo call_id=0123456789abcdef",
    ],
)
def test_what_only_talks_of_secrets_is_left_alone(prose: str) -> None:
    assert redacted(prose) == prose


@given(st.text(max_size=200) | st.text("Bearer sk-authorization:='\"?&@/ token\n\\", max_size=80))
def test_what_is_clean_once_stays_as_it_is(text: str) -> None:
    once = redacted(text, ("known-value",))
    assert redacted(once, ("known-value",)) == once


@given(st.text(min_size=redaction.SHORTEST_KNOWN, max_size=40).filter(lambda text: "*" not in text))
def test_a_known_secret_is_found_however_it_is_written(secret: str) -> None:
    encoded = secret.encode("utf-8", "surrogatepass")
    known = KnownSecrets()
    known.add([secret])
    for written in (secret, quote(encoded, safe=""), json.dumps(secret)[1:-1], base64.b64encode(encoded).decode()):
        assert written not in redacted(f"before {written} after", known.forms)


def test_a_longer_secret_is_hidden_before_one_that_is_part_of_it() -> None:
    known = KnownSecrets()
    known.add(["canary", "canary-and-more"])
    assert redacted("x canary-and-more y", known.forms) == "x **** y"


def test_what_is_too_short_to_be_a_secret_is_not_looked_for() -> None:
    assert forms_of("abc") == frozenset()


def test_the_tokens_of_a_call_are_hidden_in_its_context_only(no_configured_secrets: KnownSecrets) -> None:
    no_configured_secrets.add(["from-the-file"])
    with redaction.hiding("of-the-call", None, ""):
        with redaction.hiding("of-an-exchange"):
            assert cleaned("of-the-call of-an-exchange from-the-file") == "**** **** ****"
        assert cleaned("of-the-call of-an-exchange") == "**** of-an-exchange"
    assert cleaned("of-the-call from-the-file") == "of-the-call ****"


async def test_a_token_that_a_call_got_meanwhile_is_hidden_in_all_its_tasks_and_in_no_other_call() -> None:
    async def get_one() -> None:
        redaction.hide_in_this_call("exchanged-token")

    with redaction.hiding("of-another"):
        other = contextvars.copy_context()
    with redaction.hiding("of-the-call"):
        await asyncio.create_task(get_one())
        assert cleaned("exchanged-token of-the-call") == "**** ****"
    assert other.run(cleaned, "exchanged-token of-another") == "exchanged-token ****"
    redaction.hide_in_this_call("outside-of-calls")
    assert cleaned("outside-of-calls") == "outside-of-calls"


def test_data_loses_known_secrets_and_nothing_that_only_looks_like_one(no_configured_secrets: KnownSecrets) -> None:
    no_configured_secrets.add(["from-the-file"])
    data = {"text": "Authorization: Bearer x1 from-the-file", "results": [{"n": 1, "ok": True, "none": None}]}
    assert cleaned_data(data) == {**data, "text": "Authorization: Bearer x1 ****"}


def test_fields_are_cleaned_at_any_depth_and_hidden_by_their_name() -> None:
    class Odd:
        @override
        def __str__(self) -> str:
            return "Bearer Zm9vYmFy"

    fields = {"token": "x", "tokens": {"input": 3}, "why": ["Bearer Zm9vYmFy", 1.5, None], "odd": Odd()}
    shown = {"token": "****", "tokens": {"input": 3}, "why": ["Bearer ****", 1.5, None], "odd": "Bearer ****"}
    assert cleaned_fields(fields) == shown


SECRETS = ("canary-from-the-file", "canary with spaces and more than one word", "c" * 3_000)
SHAPES = (
    "sk-" + "a1" * 2_500,
    "eyJhbGciOiJIUzI1NiJ9." + "b2" * 2_500 + ".c2lnbmF0dXJl",
    "authorization: Bearer " + "d3" * 2_500,
    "https://ann:" + "e4" * 100 + "@host/",
    "GET /?api_key=" + "f5" * 2_500,
)


@pytest.mark.parametrize("limit", [1, 40, 300])
@pytest.mark.parametrize("secret", [*SECRETS, *SHAPES])
def test_no_cut_shows_a_part_of_a_secret(secret: str, limit: int, no_configured_secrets: KnownSecrets) -> None:
    no_configured_secrets.add(SECRETS)
    inside = secret[-min(len(secret) // 2, 100) :].removesuffix("@host/")
    pieces = {inside[at : at + 8] for at in range(len(inside) - 7)}
    for before in (0, 1, limit // 2, limit - 2, limit, limit + 900, limit + 3_000):
        for after in (0, 10, 20_000):
            text = f"{'word ' * before}"[:before] + f" {secret} " + f"{'more ' * after}"[:after]
            for shown in (redaction.shortened(text, limit), redaction.end_of(text, limit)):
                assert len(shown) <= limit + 1
                assert not [piece for piece in pieces if piece in shown], (before, after)


def test_a_cut_text_costs_what_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def noted(text: str, known: tuple[str, ...]) -> str:
        looked_at.append(len(text))
        return redacted(text, known)

    monkeypatch.setattr(redaction, "redacted", noted)
    assert redaction.shortened("é" * 3_000_000, 40) == "é" * 40 + "…"
    assert redaction.end_of("one " * 1_000_000, 40).endswith("one one ")
    assert max(looked_at) < 10_000


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("robot", "'robot'"),
        ("a\nb\ud800", "'a\\nb\\ud800'"),
        ("x" * 50, f"'{'x' * 40}…'"),
        (None, "null"),
        ([[]], "list"),
        (1.5, "float"),
    ],
)
def test_what_a_client_sent_is_quoted_in_few_characters(value: object, shown: str) -> None:
    assert redaction.quoted(value) == shown


LINE = (
    "call ended agent=solo call_id=0123456789abcdef caller=anonymous outcome=ok stop_reason=endTurn"
    " duration_seconds=0.123 iterations=3 tokens=input:10,output:5 tools=tools/echo:2"
)


def test_a_clean_line_costs_next_to_nothing() -> None:
    known = KnownSecrets()
    known.add(f"configured-secret-number-{number}" for number in range(20))
    lines = 200
    best = min(_seconds_for(lines, known) for _ in range(5))  # the best: other processes only make it slower
    assert best / lines < 0.000_05


def _seconds_for(lines: int, known: KnownSecrets) -> float:
    began = time.thread_time()
    for _ in range(lines):
        redacted(LINE, known.forms)
    return time.thread_time() - began


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "OPENAI_API_KEY",
        "PGPASSWORD",
        "X-Auth-Token",
        "GITHUB_TOKEN_2",
        "Authorization",
        "key",
        "sig",
        "DB_PWD",
        "api_key_2",
        "token" + "1" * 5_000,
        "x" * 5_000 + "_token",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_BEARER_TOKEN_BEDROCK",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens",
        "token_url",
        "DB_PASSWORD_FILE",
        "keyfile",
        "TOKENIZERS_PARALLELISM",
        "SSH_AUTH_SOCK",
        "monkey",
        "PWD",
        "OLDPWD",
    ],
)
def test_names_that_only_hold_the_word(name: str) -> None:
    assert not is_secret_name(name)


def test_every_secret_of_a_configuration_is_found() -> None:
    document = {
        "default_model": "generic.test-model",
        "generic": {"api_key": "provider-key", "base_url": "http://llm/v1"},
        "openai": {"api_key": "${UNSET_KEY}"},
        "mcp": {
            "servers": {
                "one": {
                    "url": "http://ann:p%40ss@one/mcp?api_key=query-key&page=2",
                    "headers": {"Authorization": "Bearer header-token", "X-Env": "production", "X-Own": "aB3dE6gH9jK2"},
                    "token_exchange": {"client_id": "me", "client_secret": "exchange-secret"},
                },
                "two": {
                    "command": "serve",
                    "args": ["--api-key", "arg-key", "--token=arg-token", "--port", "80"],
                    "env": {"TWO_TOKEN": "env-token", "TWO_PORT": "80"},
                },
            }
        },
    }
    assert secret_values(document) == {
        "provider-key",
        "ann:p%40ss",
        "p%40ss",
        "p@ss",
        base64.b64encode(b"ann:p@ss").decode(),
        "query-key",
        "Bearer header-token",
        "header-token",
        "aB3dE6gH9jK2",
        "exchange-secret",
        "arg-key",
        "arg-token",
        "env-token",
    }


def test_a_url_that_is_none_and_a_document_without_end_are_survived() -> None:
    endless: dict[str, object] = {"password": "found-it"}
    endless["again"] = endless
    assert secret_values({"url": "http://[", "more": endless}) == {"found-it"}
