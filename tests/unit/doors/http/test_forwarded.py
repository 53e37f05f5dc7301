"""Whose word is taken for who the client is: tables for what proxies send, properties for what anybody may send."""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pallas_gateway.doors.http.forwarded import TrustedProxies
from tests.support.asgi import Receive, Scope, Send

PROXY, SECOND_PROXY, STRANGER, CLIENT = "127.0.0.1", "10.1.2.3", "192.0.2.66", "203.0.113.9"
TRUSTED = ("127.0.0.1/32", "10.0.0.0/8", "::1/128", "fd00::/8")
CONTRADICTION = "Forwarded and X-Forwarded-* disagree"

type Headers = Sequence[tuple[str, str]]


def request(peer: str | None, headers: Headers) -> Scope:
    return {
        "type": "http",
        "scheme": "http",
        "client": None if peer is None else (peer, 4711),
        "server": ("127.0.0.1", 24200),
        "path": "/",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }


async def seen(scope: Scope, trusted: Sequence[str] = TRUSTED) -> Scope:
    """The scope behind the proxies' room."""
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)

    nobody: Any = None
    await TrustedProxies(app, trusted)(scope, nobody, nobody)
    [only] = scopes
    return only


async def sender(headers: Headers, peer: str | None = PROXY, trusted: Sequence[str] = TRUSTED) -> tuple[str, str]:
    """Scheme and address of the client as they are seen behind it."""
    scope = await seen(request(peer, headers), trusted)
    return scope["scheme"], scope["client"][0]


XFF, XFP, FWD = "x-forwarded-for", "x-forwarded-proto", "forwarded"

TOLD: list[tuple[Headers, tuple[str, str]]] = [
    ([(XFF, CLIENT), (XFP, "https")], ("https", CLIENT)),
    ([(XFF, CLIENT)], ("http", CLIENT)),
    ([(XFP, "HTTPS")], ("https", PROXY)),
    ([(XFF, f"{CLIENT}:51234")], ("http", CLIENT)),
    ([(XFF, "2001:db8::7")], ("http", "2001:db8::7")),
    ([(XFF, "[2001:db8::7]:443")], ("http", "2001:db8::7")),
    ([(XFF, f"::ffff:{CLIENT}")], ("http", CLIENT)),
    # The right-most address that is no proxy; what stands left of it the client said.
    ([(XFF, f"{STRANGER}, {CLIENT}, {SECOND_PROXY}")], ("http", CLIENT)),
    ([(XFF, f"what is this?, {CLIENT}")], ("http", CLIENT)),
    ([(XFF, f"{STRANGER}, {CLIENT}"), (XFF, SECOND_PROXY)], ("http", CLIENT)),
    ([(XFF, f"{SECOND_PROXY}, 10.9.9.9")], ("http", SECOND_PROXY)),
    ([(XFF, f" ,{CLIENT} , ")], ("http", CLIENT)),
    ([(XFF, "unknown")], ("http", PROXY)),
    ([(XFF, f"{CLIENT}, unknown, {SECOND_PROXY}")], ("http", SECOND_PROXY)),
    # The scheme of the proxy that the client reached, as far as each proxy says one.
    ([(XFF, f"{CLIENT}, {SECOND_PROXY}"), (XFP, "https, http")], ("https", CLIENT)),
    ([(XFF, f"{CLIENT}, {SECOND_PROXY}"), (XFP, "https")], ("https", CLIENT)),
    ([(XFF, CLIENT), (XFP, "https, http")], ("http", CLIENT)),
    ([(XFF, CLIENT), (XFP, "gopher, https")], ("https", CLIENT)),
    # RFC 7239
    ([(FWD, f"for={CLIENT};proto=https;host=evil.example;by=_me")], ("https", CLIENT)),
    ([(FWD, f'For="{CLIENT}:80" ; PROTO="https"')], ("https", CLIENT)),
    ([(FWD, 'for="[2001:db8::7]:4711"')], ("http", "2001:db8::7")),
    ([(FWD, rf'for="\2\0{CLIENT[2:]}"')], ("http", CLIENT)),
    ([(FWD, f"for={CLIENT};proto=https, for={SECOND_PROXY};proto=http")], ("https", CLIENT)),
    ([(FWD, f"for={STRANGER};proto=http,for={CLIENT};proto=https")], ("https", CLIENT)),
    ([(FWD, 'for="open'), (FWD, f"for={CLIENT};proto=https")], ("https", CLIENT)),
    ([(FWD, "for=_hidden;proto=https")], ("https", PROXY)),
    ([(FWD, "for=unknown")], ("http", PROXY)),
    ([(FWD, "proto=https")], ("https", PROXY)),
    ([(FWD, f",; ,for={CLIENT};")], ("http", CLIENT)),
    ([(FWD, f"for={CLIENT};proto=https"), (XFF, CLIENT), (XFP, "https")], ("https", CLIENT)),
    ([(FWD, ""), (XFF, CLIENT)], ("http", CLIENT)),
    # Only who and by which scheme.
    ([("x-forwarded-host", "evil.example"), ("x-real-ip", STRANGER)], ("http", PROXY)),
    ([("x-forwarded-port", "443"), ("x-forwarded-ssl", "on")], ("http", PROXY)),
]


@pytest.mark.parametrize(("headers", "expected"), TOLD)
async def test_a_trusted_proxy_says_who_the_client_is(headers: Headers, expected: tuple[str, str]) -> None:
    assert await sender(headers) == expected


@pytest.mark.parametrize("headers", [headers for headers, _ in TOLD])
@pytest.mark.parametrize("peer", [STRANGER, "11.0.0.1", "::2", "not an address", "127.0.0.1.evil.example"])
async def test_nobody_else_is_believed(headers: Headers, peer: str) -> None:
    assert await sender(headers, peer) == ("http", peer)


async def test_off_the_shelf_nobody_is_believed() -> None:
    assert await sender([(XFF, CLIENT), (XFP, "https")], PROXY, ()) == ("http", PROXY)


@pytest.mark.parametrize("peer", ["10.1.2.3", "::1", "fd12::3", "::ffff:10.1.2.3", "::ffff:127.0.0.1"])
async def test_a_proxy_is_known_by_its_network_and_in_either_form_of_its_address(peer: str) -> None:
    assert await sender([(XFF, CLIENT)], peer) == ("http", CLIENT)


async def test_a_request_that_came_by_no_address_is_nobodys() -> None:
    assert (await seen(request(None, [(XFF, CLIENT), (XFP, "https")])))["client"] is None


async def test_what_is_not_http_passes_as_it_is() -> None:
    scope: Scope = {"type": "lifespan"}
    assert await seen(scope) is scope


BROKEN: list[tuple[Headers, str]] = [
    *(
        ([(XFF, node), (XFP, "https")], "an address is malformed")
        for node in (
            "ingress.example.com",
            "1.2.3",
            "1.2.3.4.5",
            "256.1.1.1",
            "1.2.3.4:x",
            "[1.2.3.4]",
            ":::",
            "_",
            "1",
        )
    ),
    ([(XFF, "fe80::1%forged=1")], "an address is malformed"),  # a zone may hold any text
    ([(XFF, f"{CLIENT}, what is this?, {SECOND_PROXY}")], "an address is malformed"),
    ([(XFF, CLIENT), (XFP, "gopher")], "a scheme is neither http nor https"),
    ([(XFP, "https://evil.example")], "a scheme is neither http nor https"),
    *(
        ([(FWD, line)], "Forwarded is malformed")
        for line in (
            *("for", "for=", "=1.2.3.4", f"for={CLIENT} proto=https", f'for="{CLIENT}', f"for = {CLIENT}"),
            *("for=[::1]", f"for={CLIENT}:80", f"for={CLIENT};for={CLIENT}", f'for="{CLIENT}"x', "for=\xff"),
        )
    ),
    ([(FWD, 'for="1.2.3.4.5"')], "an address is malformed"),
    ([(FWD, f"for={CLIENT};proto=ftp")], "a scheme is neither http nor https"),
    ([(FWD, f"for={CLIENT}"), (XFF, STRANGER)], CONTRADICTION),
    ([(FWD, f"for={CLIENT}"), (XFF, CLIENT), (XFP, "https")], CONTRADICTION),
    ([(FWD, "nonsense"), (XFF, STRANGER)], "Forwarded is malformed"),
]


@pytest.mark.parametrize(("headers", "why"), BROKEN)
async def test_what_is_malformed_or_contradicts_itself_is_not_half_believed(
    headers: Headers, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await sender(headers) == ("http", PROXY)
    told = [vars(record) for record in caplog.records]
    assert [(record["why"], record["proxy"]) for record in told] == [(why, PROXY)]


async def test_a_proxy_that_says_nonsense_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

    nobody: Any = None
    room = TrustedProxies(app, TRUSTED)
    for text in ("nonsense", "more nonsense"):
        await room(request(PROXY, [(FWD, text)]), nobody, nobody)
        await room(request(STRANGER, [(FWD, text)]), nobody, nobody)
    assert [record.message for record in caplog.records] == ["forwarding headers ignored"]


@pytest.mark.parametrize("peer", [PROXY, STRANGER, None])
async def test_the_headers_are_seen_by_nobody_behind_it_and_the_host_stays(peer: str | None) -> None:
    forwarding = [(FWD, f"for={CLIENT};host=evil.example"), (XFF, CLIENT), ("X-Forwarded-Host", "evil.example")]
    forwarding += [("x-forwarded-prefix", "/x"), ("x-forwarded-server", "y"), ("x-real-ip", CLIENT)]
    kept = [("host", "agents.example.com"), ("x-forward", "stays"), ("accept", "*/*")]
    scope = await seen(request(peer, [*kept[:1], *forwarding, *kept[1:]]))
    assert scope["headers"] == [(name.encode(), value.encode()) for name, value in kept]


addresses = st.one_of(
    st.ip_addresses().map(str),
    st.sampled_from([PROXY, SECOND_PROXY, CLIENT, "::1", f"[::1]:{443}", f"::ffff:{PROXY}", "unknown", "_x"]),
)
pieces = st.one_of(
    addresses,
    st.sampled_from(
        ["for=", "proto=", "host=", "by=", ";", ",", '"', "\\", "=", " ", "[", "]", ":", "%", "http", "https"]
    ),
    st.text(st.characters(max_codepoint=255), max_size=5),
)
values = st.one_of(
    st.lists(pieces, max_size=8).map("".join),
    st.lists(addresses, max_size=4).map(", ".join),
    st.lists(addresses.map('for="{}";proto=https'.format), max_size=4).map(",".join),
)
names = st.sampled_from([FWD, XFF, XFP, "X-Forwarded-Host", "x-real-ip", "host", "accept"])
any_headers = st.lists(st.tuples(names, values), max_size=5)


@given(any_headers, st.one_of(addresses, st.none(), st.text(max_size=5)))
@example([(XFF, "fe80::1%x")], PROXY)
async def test_no_request_ends_in_an_exception_or_with_something_else_than_an_address(
    headers: Headers, peer: str | None
) -> None:
    scope = await seen(request(peer, headers))
    assert scope["scheme"] in ("http", "https")
    if scope["client"] != (None if peer is None else (peer, 4711)):
        assert str(ip_address(scope["client"][0])) == scope["client"][0]
        assert "%" not in scope["client"][0]


@given(any_headers, st.ip_addresses().filter(lambda one: not any(one in ip_network(net) for net in TRUSTED)))
async def test_nothing_that_an_untrusted_peer_sends_changes_anything(headers: Headers, peer: Any) -> None:
    with_them = await seen(request(str(peer), headers))
    without = await seen(request(str(peer), [one for one in headers if one[0] in ("host", "accept")]))
    assert with_them == without


@given(values, st.ip_addresses().filter(lambda one: not any(one in ip_network(net) for net in TRUSTED)))
async def test_what_a_client_sends_through_a_proxy_that_appends_its_address_changes_nothing(
    said: str, client: Any
) -> None:
    plain = await sender([(XFF, str(client)), (XFP, "https")])
    assert await sender([(XFF, f"{said}, {client}"), (XFP, "https")]) == plain
    assert await sender([(XFF, said), (XFF, str(client)), (XFP, "https")]) == plain
    quoted = f"[{client}]" if client.version == 6 else client
    assert await sender([(FWD, said), (FWD, f'for="{quoted}";proto=https')]) == plain


@given(values, st.ip_addresses())
async def test_what_a_client_makes_up_of_the_kind_that_its_proxy_does_not_write_makes_it_nobody_else(
    said: str, client: Any
) -> None:
    proxys = await sender([(XFF, str(client)), (XFP, "https")])
    assert await sender([(FWD, said), (XFF, str(client)), (XFP, "https")]) in (proxys, ("http", PROXY))
