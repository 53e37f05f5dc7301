"""The kinds of single values in the configuration and the rule of each; rules between values are in `rules`."""

import ipaddress
import re
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, Strict, StringConstraints

MAX_VERSION_CHARACTERS = 255  # these three are the registry schema's
MAX_ICON_SRC_CHARACTERS = 255
NAMESPACE = re.compile(r"[a-zA-Z0-9.-]+")

ICON_SIZE = re.compile(r"\d+x\d+|any", re.ASCII)
TOOL_NAME = re.compile(r"(?:[A-Za-z0-9_.-]|\{agent\})+")
VERSION_RANGE = re.compile(r"[\^~<>=*|]|\s-\s|(?:^|\.)[xX](?:\.|$)")
HEALTH_TOOL = "get_health"
DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_LEEWAY_SECONDS = 300  # more would be no leeway but a longer life for every token
MAX_HISTORY_ENTRIES = 50_000  # of which each is 3 JSON values or more, of the 500,000 that a body may hold
GRANT = re.compile(r"(?:view:agents|run:agents)(?::(?P<agent>[A-Za-z0-9][A-Za-z0-9_.-]*))?|view:metrics")
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
"""Signatures with a public key (RFC 7518, RFC 8037, RFC 9864); a shared secret would let the gateway sign, too."""


def _version(value: str) -> str:
    if value == "latest" or VERSION_RANGE.search(value):
        raise ValueError(f"'{value}' is not one version; write one such as 1.0.0")
    return value


def _namespace(value: str) -> str:
    if not NAMESPACE.fullmatch(value):
        raise ValueError("may hold only letters, digits, '.' and '-', such as com.example.project")
    return value


def _host(value: str) -> str:
    if re.search(r"[\s/@\[\]]", value) or (":" in value and not _is_ipv6(value)):
        raise ValueError("must be a host name or an address alone, without scheme, port or path")
    return value


def _is_ipv6(value: str) -> bool:
    try:
        ipaddress.IPv6Address(value)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether this host name or address is always this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_wider_than_any_site(network: str) -> bool:
    """Whether a network is more than one owner has: the widest private ones are 10.0.0.0/8 and fc00::/7."""
    return ipaddress.ip_network(network).prefixlen < _WIDEST_PREFIX


_WIDEST_PREFIX = 7


def authority(scheme: str, host: str, port: int | None) -> str:
    """`scheme://host:port` as clients write it (RFC 3986 section 6.2.3): without the scheme's own port.

    The URL of an agent names it in tokens (RFC 8707), which are compared letter by letter.
    """
    bracketed = f"[{host}]" if ":" in host else host
    return f"{scheme}://{bracketed}" if port in (None, DEFAULT_PORTS[scheme]) else f"{scheme}://{bracketed}:{port}"


def _public_url(value: str) -> str:
    message = "must be an absolute http:// or https:// URL without user, query or fragment"
    parts = _absolute(value, without=re.compile(r"[\s?#@]"), message=message)
    return f"{authority(parts.scheme, parts.hostname or '', parts.port)}{parts.path.rstrip('/')}"


def _proxy_network(value: str) -> str:
    example = "write one such as 10.0.0.7, 10.0.0.0/8 or fd00::/8"
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError(f"'{value}' is no address or network; {example}") from None
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        raise ValueError(f"'{value}' is IPv4 in the form of IPv6, which is never compared with; {example}")
    address = value.partition("/")[0]
    if ipaddress.ip_address(address) != network.network_address:
        raise ValueError(f"'{value}' is an address within {network}; write either {address} or {network}")
    return str(network)


_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


def _absolute(value: str, *, without: re.Pattern[str], message: str) -> SplitResult:
    """The parts of an http or https URL with a host and without these characters, else a `ValueError`."""
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(message) from None
    if parts.scheme not in DEFAULT_PORTS or not host or without.search(value):
        raise ValueError(message)
    return parts


def _resource_uri(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s#]+", value):
        raise ValueError("must be an absolute URI without a fragment, such as https://notes.example/mcp")
    return value


def _tool_name(value: str) -> str:
    if not TOOL_NAME.fullmatch(value):
        raise ValueError(f"'{value}' may hold only letters, digits, '_', '.', '-' and the placeholder {{agent}}")
    if value == HEALTH_TOOL:
        raise ValueError(f"'{HEALTH_TOOL}' is the health tool; choose another name")
    return value


def _authorization_url(value: str) -> str:
    """Keys, codes and tokens go this way: in clear text only within this machine."""
    parts = _absolute(value, without=re.compile(r"[\s#]"), message="must be an absolute http:// or https:// URL")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user or password; it is shown to clients and in logs")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ValueError("must begin with https://; http:// is only for this machine (localhost, 127.0.0.1 or [::1])")
    return value


def _grant(value: str) -> str:
    if not GRANT.fullmatch(value):
        kinds = "view:agents, view:agents:NAME, run:agents, run:agents:NAME and view:metrics"
        raise ValueError(f"'{value}' is no grant; grants are {kinds}")
    return value


def _sha256(value: str) -> str:
    if not SHA256.fullmatch(value):
        raise ValueError("must be a SHA-256 hash of 64 hexadecimal digits; 'pallas-gateway token new NAME' makes one")
    return value.lower()


def _key_name(value: str) -> str:
    if not KEY_NAME.fullmatch(value):
        raise ValueError(f"'{value}' may hold only letters, digits, '_', '.', '@' and '-'")
    return value


def _algorithm(value: str) -> str:
    if value not in ALGORITHMS:
        raise ValueError(f"'{value}' is not one of {', '.join(ALGORITHMS)}")
    return value


def _threads_url(value: str) -> str:
    """Its message never shows the value, which holds a password."""
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise ValueError(_THREADS_URLS) from None
    is_sqlite = parts.scheme == "sqlite" and not parts.netloc and parts.path.strip("/") and not parts.query
    if not is_sqlite and (parts.scheme not in ("postgresql", "postgres") or not parts.path.strip("/")):
        raise ValueError(_THREADS_URLS)
    if is_sqlite and ":memory:" in value:
        raise ValueError("must be a file: what is kept in memory, no other process sees")
    return value


_THREADS_URLS = "must be sqlite:///FILE, sqlite:////ABSOLUTE/FILE or postgresql://USER:PASSWORD@HOST/DATABASE"


def _texts(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _some_and_unique(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("must have at least one entry")
    twice = next((value for index, value in enumerate(values) if value in values[:index]), None)
    if twice is not None:
        raise ValueError(f"'{twice}' stands twice")
    return values


def _icon_size(value: str) -> str:
    if not ICON_SIZE.fullmatch(value):
        raise ValueError(f"'{value}' must be like 48x48, or 'any'")
    return value


def _sizes(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


Text = Annotated[str, Strict(), StringConstraints(strip_whitespace=True, min_length=1)]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=1)]
HistoryEntries = Annotated[int, Strict(), Field(ge=1, le=MAX_HISTORY_ENTRIES)]
CountOrZero = Annotated[int, Strict(), Field(ge=0)]
Port = Annotated[int, Strict(), Field(ge=1, le=65535)]
BindPort = Annotated[int, Strict(), Field(ge=0, le=65535)]
Seconds = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
LeaseSeconds = Annotated[float, Strict(), Field(ge=1, allow_inf_nan=False)]
Leeway = Annotated[float, Strict(), Field(ge=0, le=MAX_LEEWAY_SECONDS, allow_inf_nan=False)]

Version = Annotated[Text, Field(max_length=MAX_VERSION_CHARACTERS), AfterValidator(_version)]
Namespace = Annotated[Text, AfterValidator(_namespace)]
Host = Annotated[Text, AfterValidator(_host)]
PublicHost = Annotated[Host, AfterValidator(str.lower)]
ResourceUri = Annotated[Text, AfterValidator(_resource_uri)]
PublicUrl = Annotated[Text, AfterValidator(_public_url)]
ProxyNetwork = Annotated[Text, AfterValidator(_proxy_network)]
ToolNames = Annotated[
    tuple[Annotated[Text, AfterValidator(_tool_name)], ...],
    AfterValidator(_some_and_unique),  # a min_length would count only the entries that are right
    Field(json_schema_extra={"minItems": 1, "uniqueItems": True}),
]
IconSource = Annotated[Text, Field(max_length=MAX_ICON_SRC_CHARACTERS)]
IconSize = Annotated[Text, AfterValidator(_icon_size)]
IconSizes = Annotated[tuple[IconSize, ...], BeforeValidator(_sizes, json_schema_input_type=str | tuple[IconSize, ...])]

ThreadsUrl = Annotated[Text, AfterValidator(_threads_url)]
AuthorizationUrl = Annotated[Text, AfterValidator(_authorization_url)]
Grant = Annotated[Text, AfterValidator(_grant)]
Sha256 = Annotated[Text, AfterValidator(_sha256)]
KeyName = Annotated[Text, AfterValidator(_key_name)]
Algorithms = Annotated[
    tuple[Annotated[Text, AfterValidator(_algorithm)], ...],
    AfterValidator(_some_and_unique),
    Field(json_schema_extra={"minItems": 1, "uniqueItems": True}),
]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_texts, json_schema_input_type=str | tuple[Text, ...])]
