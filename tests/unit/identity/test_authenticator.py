"""Who holds a token: each way in which one is not good, and what becomes of one that is."""

import base64
import json
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from typing import Any

import httpx
import pytest
import respx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from pydantic import ValidationError

from pallas_gateway.config.model.auth import AuthSettings
from pallas_gateway.errors import TokenRejectedError, VerificationUnavailableError
from pallas_gateway.identity.authenticator import Authenticator
from pallas_gateway.identity.caller import Caller
from pallas_gateway.identity.grants import Grants
from pallas_gateway.identity.secret import Secret
from pallas_gateway.identity.static_keys import hash_of
from pallas_gateway.tasks import TaskOwner

ISSUER, JWKS = "https://login.example.com", "https://login.example.com/jwks"
HERE = "https://agents.example.com/agents/echo/mcp"
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
STRANGER = RSAKey.generate_key(2048, {"kid": "rsa"})
UNKNOWN = RSAKey.generate_key(2048, {"kid": "unknown"})
PUBLIC = {"keys": [key.as_dict(private=False) for key in (RSA, EC, ED)]}
JWT = {"issuer": ISSUER, "jwks_uri": JWKS, "audience": "pallas"}
SETTINGS: dict[str, Any] = {
    "tokens": [
        {"name": "ci", "sha256": [hash_of("pgw_new").upper(), hash_of("pgw_ci")], "grants": ["run:agents:echo"]}
    ],
    "jwt": JWT,
    "anonymous": ["view:agents"],
}


def minted(key: Key = RSA, alg: str = "RS256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A good token, but for what is given; a claim that is None is left out."""
    now = int(time.time())
    whole = {"iss": ISSUER, "aud": HERE, "sub": "ann", "exp": now + 600, "scope": "openid run:agents:echo", **claims}
    present = {name: value for name, value in whole.items() if value is not None}
    named = {"kid": key.kid} if header is None else header
    return jwt.encode({"alg": alg, **named}, present, key, [alg])


def by_hand(header: dict[str, Any], payload: bytes = b"{}", signature: bytes = b"") -> str:
    """Anything in the shape of a token."""
    parts = (json.dumps(header).encode(), payload, signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@pytest.fixture
def jwks() -> Iterator[respx.Route]:
    with respx.mock(assert_all_called=False) as router:
        yield router.get(JWKS).mock(return_value=httpx.Response(200, json=PUBLIC))


@asynccontextmanager
async def authenticating(settings: Mapping[str, Any], **of: Any) -> AsyncGenerator[Authenticator]:
    async with httpx.AsyncClient() as client, TaskOwner() as tasks:
        yield Authenticator(AuthSettings.model_validate(settings), client=client, tasks=tasks, **of)


@pytest.fixture
async def gate(jwks: respx.Route) -> AsyncGenerator[Authenticator]:
    async with authenticating(SETTINGS) as gate:
        yield gate


async def identify(gate: Authenticator, token: str | None) -> Caller:
    return await gate.identify(Secret(token) if token is not None else None, audiences=[HERE])


async def why_not(gate: Authenticator, token: str) -> str:
    with pytest.raises(TokenRejectedError) as caught:
        await identify(gate, token)
    assert caught.value.reason == "invalid_token"
    assert caught.value.__cause__ is None
    assert token not in repr(caught.value) or not token
    return str(caught.value)


async def test_without_a_token_one_is_anonymous(gate: Authenticator) -> None:
    assert await identify(gate, None) == Caller("anonymous", grants=Grants.of(["view:agents"]))


@pytest.mark.parametrize("key", ["pgw_ci", "pgw_new"])
async def test_a_static_key_has_its_name_and_grants_and_is_never_to_be_handed_on(gate: Authenticator, key: str) -> None:
    caller = await identify(gate, key)
    assert caller == Caller("ci", None, Grants.of(["run:agents:echo"]), authenticated=True, owner="key:ci", kind="key")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": 1}, "the token has expired"),
        ({"exp": None}, "the token has no exp"),
        ({"exp": "9999999999"}, "the token's exp is malformed"),
        ({"exp": True}, "the token's exp is malformed"),
        ({"nbf": 9_999_999_999}, "the token is not valid yet"),
        ({"iat": 9_999_999_999}, "the token is not valid yet"),
        ({"nbf": "soon"}, "the token is not valid yet"),
        ({"iss": None}, "the token has no iss"),
        ({"iss": "https://login.example.com/"}, "the token is of another issuer"),
        ({"iss": [ISSUER]}, "the token is of another issuer"),
        ({"aud": None}, "the token has no aud"),
        ({"aud": []}, "the token is for another audience"),
        ({"aud": "https://agents.example.com/agents/other/mcp"}, "the token is for another audience"),
        ({"aud": [HERE, 1]}, "the token is for another audience"),
        ({"sub": 7}, "the token's sub is malformed"),
    ],
    ids=str,
)
async def test_a_token_with_a_wrong_claim_is_rejected_with_the_reason(
    gate: Authenticator, claims: dict[str, Any], why: str
) -> None:
    assert await why_not(gate, minted(**claims)) == why


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (minted(STRANGER), "the token's signature is wrong"),
        (minted(UNKNOWN), "the token was signed with an unknown key"),
        (minted(header={}), "the token was signed with an unknown key"),
        (minted(RSA, "RS384"), "the token's signature algorithm is not accepted"),
        (by_hand({"alg": "none"}), "the token's signature algorithm is not accepted"),
        (by_hand({"alg": "none", "kid": "rsa"}), "the token's signature algorithm is not accepted"),
        (by_hand({"alg": "ES256", "kid": "rsa"}), "the token is malformed"),
        (by_hand({"alg": "RS256", "kid": "rsa"}), "the token's signature is wrong"),
        (by_hand({"alg": "RS256", "kid": ["rsa"]}), "the token is malformed"),
        (by_hand({"alg": ["RS256"], "kid": "rsa"}), "the token is malformed"),
        (by_hand({"kid": "rsa"}), "the token is malformed"),
        (minted()[:-10], "the token's signature is wrong"),
        ("a.b.c", "the token is malformed"),
        ("opaque", "the token is malformed"),
        ("[" * 3000 + ".x.y", "the token is malformed"),
        ("e30." * 5, "the token is malformed"),
        ("x" * 200_000, "the token is malformed"),
    ],
    ids=lambda value: value[:30],
)
async def test_a_token_that_is_not_the_issuers_is_rejected(gate: Authenticator, token: str, why: str) -> None:
    assert await why_not(gate, token) == why


@pytest.mark.parametrize(
    ("claims", "grants"),
    [
        ({"scope": "view:metrics run:agents"}, ["view:metrics", "run:agents"]),
        ({"scope": ["view:agents", 7, "email"]}, ["view:agents"]),
        ({"scope": None}, []),
        ({"scope": {"run:agents": True}}, []),
        ({"scope": ""}, []),
    ],
    ids=str,
)
async def test_grants_are_the_words_of_the_claim_that_are_grants(
    gate: Authenticator, claims: dict[str, Any], grants: list[str]
) -> None:
    assert (await identify(gate, minted(**claims))).grants == Grants.of(grants)


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"sub": None, "client_id": "batch"}, "batch"),
        ({"sub": None, "azp": "web"}, "web"),
        ({"sub": None}, "unknown"),
        ({"sub": "x" * 500}, "x" * 200),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_caller_is_named_by_the_token(gate: Authenticator, claims: dict[str, Any], name: str) -> None:
    assert (await identify(gate, minted(**claims))).name == name


async def test_a_new_key_is_found_when_a_token_names_it(gate: Authenticator, jwks: respx.Route) -> None:
    await identify(gate, minted())
    both = {"keys": [*PUBLIC["keys"], UNKNOWN.as_dict(private=False)]}
    jwks.mock(return_value=httpx.Response(200, json=both))
    assert (await identify(gate, minted(UNKNOWN))).name == "ann"


async def test_a_new_key_under_an_old_id_is_found_when_the_signature_is_wrong(
    gate: Authenticator, jwks: respx.Route
) -> None:
    await identify(gate, minted())
    jwks.mock(return_value=httpx.Response(200, json={"keys": [STRANGER.as_dict(private=False)]}))
    assert (await identify(gate, minted(STRANGER))).name == "ann"
    assert await why_not(gate, minted()) == "the token's signature is wrong"


async def test_without_keys_a_token_cannot_be_judged_but_a_static_key_can() -> None:
    async with authenticating(SETTINGS) as gate:
        with respx.mock() as router:
            router.get(JWKS).mock(side_effect=httpx.ConnectError("refused"))
            with pytest.raises(VerificationUnavailableError):
                await identify(gate, minted())
            assert (await identify(gate, "pgw_ci")).name == "ci"


async def test_with_static_keys_alone_any_other_token_is_unknown() -> None:
    async with authenticating({"tokens": SETTINGS["tokens"]}) as gate:
        assert await why_not(gate, minted()) == "the token is not known"


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.one_of(
        st.text(),
        st.builds(
            by_hand,
            st.dictionaries(
                st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk"]),
                st.recursive(
                    st.one_of(
                        st.none(), st.booleans(), st.integers(), st.sampled_from(["RS256", "none", "rsa", "HS256"])
                    ),
                    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
                    max_leaves=4,
                ),
            ),
            st.binary(max_size=40),
            st.binary(max_size=40),
        ),
    )
)
async def test_no_text_makes_verification_fail_in_any_other_way(gate: Authenticator, text: str) -> None:
    with pytest.raises(TokenRejectedError):
        await identify(gate, text)


@pytest.mark.parametrize(
    ("claims", "owner"),
    [
        ({}, f"token:{ISSUER} sub ann"),
        ({"preferred_username": "bob"}, f"token:{ISSUER} sub ann"),
        ({"sub": None, "client_id": "ann"}, f"token:{ISSUER} client_id ann"),
        ({"sub": None, "azp": "robot"}, f"token:{ISSUER} azp robot"),
        ({"sub": None}, None),
        ({"sub": "a\0b"}, f"token:{ISSUER} sha256 {sha256(b'sub a' + bytes(1) + b'b').hexdigest()}"),
        ({"sub": "x" * 500}, f"token:{ISSUER} sha256 {sha256(b'sub ' + b'x' * 500).hexdigest()}"),
    ],
)
async def test_what_a_token_leaves_behind_is_its_subjects_whatever_it_is_called(
    claims: dict[str, Any], owner: str | None, jwks: respx.Route
) -> None:
    async with authenticating({**SETTINGS, "jwt": {**JWT, "name_claim": "preferred_username"}}) as gate:
        assert (await identify(gate, minted(**claims))).owner == owner


async def test_a_name_without_a_subject_has_no_account_of_another_token(jwks: respx.Route) -> None:
    async with authenticating({**SETTINGS, "jwt": {**JWT, "name_claim": "nickname"}}) as gate:
        victim = await identify(gate, minted(sub="ann"))
        other = await identify(gate, minted(sub=None, nickname=f"{ISSUER} sub ann"))
    assert other.principal == victim.account
    assert other.account != victim.account


async def test_keys_tokens_and_nobody_own_nothing_together(gate: Authenticator) -> None:
    owners = {(await identify(gate, token)).owner for token in (None, "pgw_ci", minted(sub="ci"), minted(sub="key:ci"))}
    assert owners == {"anonymous", "key:ci", f"token:{ISSUER} sub ci", f"token:{ISSUER} sub key:ci"}


@pytest.mark.parametrize(
    ("not_after", "last"),
    [
        ("2026-06-01", "2026-06-01T23:59:59.999999+00:00"),
        (date(2026, 6, 1), "2026-06-01T23:59:59.999999+00:00"),
        ("2026-06-01T10:00:00+02:00", "2026-06-01T08:00:00+00:00"),
        (datetime(2026, 6, 1, 8, tzinfo=UTC), "2026-06-01T08:00:00+00:00"),
        ("2026-06-01t08:00:00z", "2026-06-01T08:00:00+00:00"),
    ],
)
async def test_a_key_is_accepted_until_its_end_and_is_never_sent_elsewhere(not_after: object, last: str) -> None:
    entry = {"name": "ci", "sha256": hash_of("pgw_ci"), "not_after": not_after}
    moment = datetime.fromisoformat(last)
    async with authenticating({"tokens": [entry]}, now=lambda: moment) as gate:
        assert (await gate.identify(Secret("pgw_ci"), audiences=[])).name == "ci"
        moment += timedelta(microseconds=1)
        with pytest.raises(TokenRejectedError, match=r"^the key has expired$"):
            await gate.identify(Secret("pgw_ci"), audiences=[])
        with pytest.raises(TokenRejectedError, match=r"^the token is not known$"):
            await gate.identify(Secret("pgw_other"), audiences=[])
        assert gate.is_own_key(Secret("pgw_ci"))


@pytest.mark.parametrize(
    "not_after",
    ["soon", "2026-06-31", "2026-06-01T08:00:00", "2026-06-01T08:00", datetime(2026, 6, 1), 5, "", "20260601"],  # noqa: DTZ001
)
def test_an_end_without_a_zone_or_of_no_day_is_refused(not_after: object) -> None:
    entry = {"name": "ci", "sha256": hash_of("pgw_ci"), "not_after": not_after}
    with pytest.raises(ValidationError, match="must be a date such as 2027-01-31"):
        AuthSettings.model_validate({"tokens": [entry]})
