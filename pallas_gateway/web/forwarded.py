"""Who a request comes from, and by which scheme, where proxies stand between: their word for it, if they are trusted.

Formats: `Forwarded` (RFC 7239), and `X-Forwarded-For` with `X-Forwarded-Proto` as proxies write them. Both are read
from the nearest proxy outwards, and only as far as trusted proxies wrote them; what stands beyond, a client said.

Deliberately not the host. The Host guard judges the `Host` that came in, whoever brought it: a page that has rebound
its name to this machine comes from loopback, where the trusted proxy often is, and may send any `X-Forwarded-Host`.
Nothing else needs it, since URLs for clients come from `gateway.public_url` and never from a request.
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
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"  # noqa: S105  the word of RFC 9110
# Possessive: a client's header may be all spaces, which could be given back in as many ways as there are.
_PAIR = re.compile(rf'[ \t]*+(?:({_TOKEN})=(?:({_TOKEN})|"((?:[^"\\]|\\.)*+)"))?[ \t]*+(,|;|\Z)')
_ESCAPED = re.compile(r"\\(.)")
_PORT = r"(?::(?:[0-9]{1,5}|_[0-9A-Za-z._-]+))?"
_NODE = re.compile(
    rf"(?P<four>[0-9.]+){_PORT}|\[(?P<six>[0-9A-Fa-f:.]+)\]{_PORT}|(?P<bare>[0-9A-Fa-f:.]+)"
    rf"|(?:[Uu]nknown|_[0-9A-Za-z._-]+){_PORT}"
)
"""An address, IPv6 also bare as it stands in X-Forwarded-For; or a client that the proxy does not want to name. No zone
(`%eth0`): it may hold any text at all, and would bring it into the log."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Where a request comes from."""

    client: Address
    scheme: str


@dataclass(frozen=True, slots=True)
class Hop:
    """What one proxy says of the request as it got it; None what it does not say."""

    client: Address | None
    scheme: str | None


class ForwardedError(ValueError):
    """What trusted proxies say cannot be believed."""


class TrustedProxies:
    """Puts the sender that trusted proxies tell of into the scope, as `client` and `scheme`.

    Nothing behind it sees their headers, nor those that somebody else made up.
    """

    def __init__(self, app: ASGIApp, trusted: Sequence[str]) -> None:
        """Stand before `app`; `trusted` are addresses and networks as `gateway.trusted_proxies` has them."""
        self._app = app
        self._networks = tuple(map(ip_network, trusted))
        self._told: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request."""
        await self._app(self._seen(scope) if scope["type"] == "http" else scope, receive, send)

    def _seen(self, scope: Scope) -> Scope:
        kept = [(name, value) for name, value in scope["headers"] if not _is_forwarding(name)]
        seen = {**scope, "headers": kept}
        peer = _peer(scope)
        if peer is None or len(kept) == len(scope["headers"]):
            return seen
        try:
            sender = self._sender(Sender(peer, scope["scheme"]), scope["headers"])
        except ForwardedError as error:
            self._tell(str(error), peer)
            return seen
        seen["scheme"] = sender.scheme
        if sender.client != peer:
            seen["client"] = (str(sender.client), 0)  # ASGI wants a port; which it was, nobody says
        return seen

    def _sender(self, connected: Sender, headers: Sequence[tuple[bytes, bytes]]) -> Sender:
        """Who sent it.

        A proxy writes one of the two kinds and may hand on the other as the client made it up. Which one is the proxy's
        cannot be seen, so two that disagree are both worth nothing.

        Raises:
            ForwardedError: malformed as far as it is to be believed, or the kinds disagree.
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
        """From proxy to proxy, nearest first, to the first address that is none, or that is not named."""
        client, scheme = connected.client, connected.scheme
        while self._trusts(client) and (hop := next(hops, None)) is not None:
            scheme = hop.scheme or scheme
            if hop.client is None:
                break
            client = hop.client
        return Sender(client, scheme)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _tell(self, why: str, proxy: Address) -> None:
        """Log, each reason once: it is a proxy's configuration, and clients may bring it about at will."""
        if why not in self._told:
            self._told.add(why)
            _log.warning("forwarding headers ignored", extra={"why": why, "proxy": str(proxy)})


def _is_forwarding(name: bytes) -> bool:
    lowered = name.lower()
    return lowered in (b"forwarded", b"x-real-ip") or lowered.startswith(b"x-forwarded-")


def _peer(scope: Scope) -> Address | None:
    try:
        return _plain(ip_address((scope.get("client") or ("",))[0]))
    except ValueError:
        return None


def _plain(address: Address) -> Address:
    """IPv4 in its own form: a listener on `::` sees it as `::ffff:10.0.0.1`."""
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def _values(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in headers if name.lower() == wanted]


def _listed(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    parts = ",".join(_values(headers, wanted)).split(",")
    return [part.strip(" \t") for part in parts if part.strip(" \t")]


def _forwarded(lines: Sequence[str]) -> Iterator[Hop]:
    """The hops of `Forwarded`, nearest first; a line is not looked at before its hops are asked for."""
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
    """The hops of `X-Forwarded-*`, nearest first. Proxies that replace the scheme and append the address are common."""
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
