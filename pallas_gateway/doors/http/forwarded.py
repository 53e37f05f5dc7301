"""The client and the scheme of a request from the forwarding headers of trusted proxies.

Formats: `Forwarded` (RFC 7239), and `X-Forwarded-For` with `X-Forwarded-Proto`. Both are read from the nearest proxy
outwards, only as far as trusted proxies wrote them; a client may have sent the rest.

The host is deliberately not taken from them. The Host guard checks the `Host` that arrived: after DNS rebinding a page
comes from loopback, where the trusted proxy often is, and can send any `X-Forwarded-Host`. URLs for clients come from
`gateway.public_url`, never from a request.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    type Address = IPv4Address | IPv6Address

_log = logging.getLogger("pallas.web")
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"  # noqa: S105  a token of RFC 9110
# Possessive, so that a header of many spaces causes no backtracking.
_PAIR = re.compile(rf'[ \t]*+(?:({_TOKEN})=(?:({_TOKEN})|"((?:[^"\\]|\\.)*+)"))?[ \t]*+(,|;|\Z)')
_ESCAPED = re.compile(r"\\(.)")
_PORT = r"(?::(?:[0-9]{1,5}|_[0-9A-Za-z._-]+))?"
_NODE = re.compile(
    rf"(?P<four>[0-9.]+){_PORT}|\[(?P<six>[0-9A-Fa-f:.]+)\]{_PORT}|(?P<bare>[0-9A-Fa-f:.]+)"
    rf"|(?:[Uu]nknown|_[0-9A-Za-z._-]+){_PORT}"
)
"""An address, IPv6 also without brackets as in X-Forwarded-For; or an obfuscated or unknown client. Zones (`%eth0`) are
invalid: they may hold any text, which would reach the log."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Client and scheme of a request."""

    client: Address
    scheme: str


@dataclass(frozen=True, slots=True)
class Hop:
    """Client and scheme as one proxy received the request; None for unknown values."""

    client: Address | None
    scheme: str | None


class ForwardedError(ValueError):
    """The forwarding headers of trusted proxies are not usable."""


class TrustedProxies:
    """Sets `client` and `scheme` of the scope by the headers of trusted proxies, and removes all forwarding headers."""

    def __init__(self, app: ASGIApp, trusted: Sequence[str]) -> None:
        """Wrap `app`; `trusted` are the addresses and networks of `gateway.trusted_proxies`."""
        self._app = app
        self._networks = tuple(map(ip_network, trusted))
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(self._seen(scope) if scope["type"] == "http" else scope, receive, send)

    def _seen(self, scope: Scope) -> Scope:
        kept = [(name, value) for name, value in scope["headers"] if not _is_forwarding(name)]
        seen = {**scope, "headers": kept}
        if len(kept) == len(scope["headers"]) or (peer := _peer(scope)) is None:
            return seen
        try:
            sender = self._sender(Sender(peer, scope["scheme"]), scope["headers"])
        except ForwardedError as error:
            if (why := str(error)) not in self._logged:  # each reason once, because any client can cause it
                self._logged.add(why)
                # [The proxy](security.md#proxies) passes on what clients send; each reason once.
                _log.warning("forwarding headers ignored", extra={"why": why, "proxy": str(peer)})
            return seen
        seen["scheme"] = sender.scheme
        if sender.client != peer:
            seen["client"] = (str(sender.client), 0)  # ASGI requires a port, which is unknown
        return seen

    def _sender(self, connected: Sender, headers: Sequence[tuple[bytes, bytes]]) -> Sender:
        """Return the client before the trusted proxies.

        A proxy writes one of the two kinds of headers and may pass on the other from the client. Which one
        is the proxy's is unknown, so kinds that disagree are both ignored.

        Raises:
            ForwardedError: the headers of trusted proxies are malformed, or the kinds disagree.
        """
        standard = _values(headers, b"forwarded")
        clients, schemes = _listed(headers, b"x-forwarded-for"), _listed(headers, b"x-forwarded-proto")
        kinds = [_forwarded(standard)] if any(value.strip() for value in standard) else []
        kinds += [_x_forwarded(clients, schemes)] if clients or schemes else []
        senders = {self._followed(connected, hops) for hops in kinds}
        if len(senders) > 1:
            raise ForwardedError("Forwarded and X-Forwarded-* disagree")
        return senders.pop() if senders else connected

    def _followed(self, connected: Sender, hops: Iterator[Hop]) -> Sender:
        """Follow the trusted proxies, nearest first, to the first address that is not one of them or is unknown."""
        client, scheme = connected.client, connected.scheme
        while self._trusts(client) and (hop := next(hops, None)) is not None:
            scheme = hop.scheme or scheme
            if hop.client is None:
                break
            client = hop.client
        return Sender(client, scheme)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _is_forwarding(name: bytes) -> bool:
    lowered = name.lower()
    return lowered in (b"forwarded", b"x-real-ip") or lowered.startswith(b"x-forwarded-")


def _peer(scope: Scope) -> Address | None:
    try:
        return _plain(ip_address((scope.get("client") or ("",))[0]))
    except ValueError:
        return None


def _plain(address: Address) -> Address:
    """Return an IPv4-mapped address such as `::ffff:10.0.0.1`, from a listener on `::`, as IPv4."""
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def _values(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in headers if name.lower() == wanted]


def _listed(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    parts = ",".join(_values(headers, wanted)).split(",")
    return [part.strip(" \t") for part in parts if part.strip(" \t")]


def _forwarded(lines: Sequence[str]) -> Iterator[Hop]:
    """Yield the hops of `Forwarded`, nearest first; a line is parsed when its hops are needed."""
    for line in reversed(lines):
        for element in reversed(_elements(line)):
            yield Hop(_node(element.get("for")), _scheme(element.get("proto")))


def _elements(line: str) -> list[dict[str, str]]:
    elements: list[dict[str, str]] = [{}]
    at, end = 0, ","
    while end:
        match = _PAIR.match(line, at)
        if match is None:
            raise ForwardedError("Forwarded is malformed")
        name, token, quoted, end = match.groups()
        if name is not None:
            if name.lower() in elements[-1]:
                raise ForwardedError("Forwarded is malformed")
            elements[-1][name.lower()] = _ESCAPED.sub(r"\1", quoted) if token is None else token
        if end == ",":
            elements.append({})
        at = match.end()
    return [element for element in elements if element]


def _x_forwarded(clients: Sequence[str], schemes: Sequence[str]) -> Iterator[Hop]:
    """Yield the hops of `X-Forwarded-*`, nearest first; many proxies replace the scheme and append the address."""
    for client, scheme in zip_longest(reversed(clients), reversed(schemes)):
        yield Hop(_node(client), _scheme(scheme))


def _node(text: str | None) -> Address | None:
    if text is None:
        return None
    match = _NODE.fullmatch(text)
    if match is None:
        raise ForwardedError("an address is malformed")
    try:
        if match["four"]:
            return IPv4Address(match["four"])
        six = match["six"] or match["bare"]
        return _plain(IPv6Address(six)) if six else None
    except ValueError:
        raise ForwardedError("an address is malformed") from None


def _scheme(text: str | None) -> str | None:
    if text is not None and text.lower() not in ("http", "https"):
        raise ForwardedError("a scheme is neither http nor https")
    return text.lower() if text is not None else None
