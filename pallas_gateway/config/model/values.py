"""The types of single values in the configuration, with their rules; rules between values are in `rules`."""

import ipaddress
import re
from datetime import UTC, date, datetime, time
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, Strict, StringConstraints

MAX_VERSION_CHARACTERS = 255  # these three are the registry schema's
MAX_ICON_SRC_CHARACTERS = 255
TOOL_NAME = re.compile(r"(?:[A-Za-z0-9_.-]|\{agent\})+")
VERSION_RANGE = re.compile(r"[\^~<>=*|]|\s-\s|(?:^|\.)[xX](?:\.|$)")
HEALTH_TOOL = "get_health"
CALLER_KINDS = ("key:", "token:")
"""Beginnings of the names of callers with a static key and with a JWT."""
_CALLERS = (*CALLER_KINDS, "anonymous")
WILDCARD = re.compile(r"[*?\[]")
"""Begins the part of a glob that is no plain text."""
SHORTEST_STATE_KEY = 32
MOST_HASHES = 2  # of one static key: the new and the old one
DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_LEEWAY_SECONDS = 300  # more would extend the life of every token
MAX_HISTORY_ENTRIES = 50_000  # each is at least 3 of the 500,000 JSON values that a body may hold
GRANT = re.compile(
    r"(?:view:agents|run:agents|view:instructions|edit:agents|delete:agents)(?::(?P<agent>[A-Za-z0-9][A-Za-z0-9_.-]*))?"
    r"|create:agents|view:metrics|view:gateway|view:calls|cancel:calls"
)
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
"""Signatures with a public key (RFC 7518, RFC 8037, RFC 9864); with a shared secret, the gateway could sign as well."""


def _fits(pattern: str | re.Pattern[str], message: str) -> AfterValidator:
    """Require that a whole text matches a pattern; VALUE in the message stands for the text."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(message.replace("VALUE", value))
        return value

    return AfterValidator(check)


def _version(value: str) -> str:
    if value == "latest" or VERSION_RANGE.search(value):
        raise ValueError(f"'{value}' is not one version; write one such as 1.0.0")
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
    """Return True if a host name or address is always this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_wider_than_any_site(network: str) -> bool:
    """Return True for a network wider than any private one; these are 10.0.0.0/8 and fc00::/7."""
    return ipaddress.ip_network(network).prefixlen < _WIDEST_PREFIX


_WIDEST_PREFIX = 7


def authority(scheme: str, host: str, port: int | None) -> str:
    """Return `scheme://host:port` in canonical form (RFC 3986 section 6.2.3): without the scheme's own port.

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
        raise ValueError(f"'{value}' is IPv4 in the form of IPv6, which never matches; {example}")
    address = value.partition("/")[0]
    if ipaddress.ip_address(address) != network.network_address:
        raise ValueError(f"'{value}' is an address within {network}; write either {address} or {network}")
    return str(network)


_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


def _absolute(value: str, *, without: re.Pattern[str], message: str) -> SplitResult:
    """Split an http or https URL with a host and without certain characters; `ValueError` for any other."""
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(message) from None
    if parts.scheme not in DEFAULT_PORTS or not host or without.search(value):
        raise ValueError(message)
    return parts


def _tool_name(value: str) -> str:
    if not TOOL_NAME.fullmatch(value):
        raise ValueError(f"'{value}' may hold only letters, digits, '_', '.', '-' and the placeholder {{agent}}")
    if value == HEALTH_TOOL:
        raise ValueError(f"'{HEALTH_TOOL}' is the health tool; choose another name")
    return value


def _authorization_url(value: str) -> str:
    """Require https, except for this machine: keys, codes and tokens are sent there."""
    parts = _absolute(value, without=re.compile(r"[\s#]"), message="must be an absolute http:// or https:// URL")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user or password; it is shown to clients and in logs")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ValueError("must begin with https://; http:// is only for this machine (localhost, 127.0.0.1 or [::1])")
    return value


def _approval_glob(value: str) -> str:
    if value != "destructive" and "/" not in value:
        raise ValueError("must be a glob over `server/tool`, such as `files/delete_*`, or `destructive`")
    return value


def _caller_glob(value: str) -> str:
    """Require a pattern that some caller may match, of which there are three kinds."""
    beginning, *pattern = WILDCARD.split(value, maxsplit=1)
    of_kind = (value.startswith(kind) and value != kind for kind in CALLER_KINDS)
    if not (value == "anonymous" or any(of_kind) or (pattern and any(one.startswith(beginning) for one in _CALLERS))):
        kinds = " or ".join(f"{kind}{value}" for kind in CALLER_KINDS)
        raise ValueError(f"'{value}' matches no caller; callers are {kinds}, and anonymous")
    return value


def _released_server(value: str) -> str:
    if re.search(r"[*?\[\]]", value):
        raise ValueError("must be the name of one server; patterns are for its tools")
    if "__" in value:  # tools are named server__tool, so this one's could pass for those of another server
        raise ValueError("has '__' in its name, which separates servers and tools; rename the server")
    return value


def _state_key(value: str) -> str:
    if len(value.encode()) < SHORTEST_STATE_KEY:
        raise ValueError(f"must have at least {SHORTEST_STATE_KEY} bytes, such as those of `openssl rand -hex 32`")
    return value


TRACE_ID = "{trace_id}"
"""Stands for the id of a trace in `gateway.trace_url`."""


def _trace_url(value: str) -> str:
    message = f"must be an http:// or https:// URL that contains {TRACE_ID}, without a user or password"
    if TRACE_ID not in value:
        raise ValueError(message)
    if "@" in _absolute(value, without=re.compile(r"\s"), message=message).netloc:
        raise ValueError(message)
    return value


def _database_url(value: str) -> str:
    """Check the URL of a database. The message never contains the value, which holds a password."""
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise ValueError(_THREADS_URLS) from None
    is_sqlite = parts.scheme == "sqlite" and not parts.netloc and parts.path.strip("/") and not parts.query
    if not is_sqlite and (parts.scheme not in ("postgresql", "postgres") or not parts.path.strip("/")):
        raise ValueError(_THREADS_URLS)
    if is_sqlite and ":memory:" in value:
        raise ValueError("must be a file: other processes cannot read memory")
    return value


_THREADS_URLS = "must be sqlite:///FILE, sqlite:////ABSOLUTE/FILE or postgresql://USER:PASSWORD@HOST/DATABASE"


_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-9]{2}))?", re.I
)


def _not_after(value: object) -> datetime:
    """Return the last moment; that of a date is the end of the day (UTC). YAML reads dates that are not quoted."""
    read = value
    if isinstance(value, str) and _RFC_3339.fullmatch(value):
        try:
            read = (
                date.fromisoformat(value) if len(value) == len("2027-01-31") else datetime.fromisoformat(value.upper())
            )
        except ValueError:  # such as the 31st of June
            read = None
    if isinstance(read, datetime) and read.tzinfo is not None:
        return read
    if isinstance(read, date) and not isinstance(read, datetime):
        return datetime.combine(read, time.max, UTC)
    raise ValueError("must be a date such as 2027-01-31, or a date and time with a zone such as 2027-01-31T18:00:00Z")


def _texts(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _some_and_unique(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("must have at least one entry")
    twice = next((value for index, value in enumerate(values) if value in values[:index]), None)
    if twice is not None:
        raise ValueError(f"'{twice}' stands twice")
    return values


def _hashes(value: object) -> object:
    """Return the hashes of one text or a list of two; problems are those of the whole value."""
    texts = value if isinstance(value, list | tuple) else (value,)
    hashes = tuple(one.strip().lower() for one in texts if isinstance(one, str))
    if not 1 <= len(hashes) == len(texts) <= MOST_HASHES or not all(_SHA256.fullmatch(one) for one in hashes):
        raise ValueError(_HASH)
    return hashes


_SHA256 = re.compile("[0-9a-f]{64}")
_HASH = (
    "must be a SHA-256 hash of 64 hexadecimal digits in quotes, or a list of a new and an old one; "
    "'pallas-gateway token new NAME' makes one"
)


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
Price = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Leeway = Annotated[float, Strict(), Field(ge=0, le=MAX_LEEWAY_SECONDS, allow_inf_nan=False)]

Version = Annotated[Text, Field(max_length=MAX_VERSION_CHARACTERS), AfterValidator(_version)]
Namespace = Annotated[
    Text, _fits("[a-zA-Z0-9.-]+", "may hold only letters, digits, '.' and '-', such as com.example.project")
]
Host = Annotated[Text, AfterValidator(_host)]
PublicHost = Annotated[Host, AfterValidator(str.lower)]
ResourceUri = Annotated[
    Text,
    _fits(
        r"[A-Za-z][A-Za-z0-9+.-]*:[^\s#]+",
        "must be an absolute URI without a fragment, such as https://notes.example/mcp",
    ),
]
PublicUrl = Annotated[Text, AfterValidator(_public_url)]
ProxyNetwork = Annotated[Text, AfterValidator(_proxy_network)]
ToolNames = Annotated[
    tuple[Annotated[Text, AfterValidator(_tool_name)], ...],
    AfterValidator(_some_and_unique),  # a min_length would count only the entries that are right
    Field(json_schema_extra={"minItems": 1, "uniqueItems": True}),
]
IconSource = Annotated[Text, Field(max_length=MAX_ICON_SRC_CHARACTERS)]
IconSize = Annotated[Text, _fits("[0-9]+x[0-9]+|any", "'VALUE' must be like 48x48, or 'any'")]
IconSizes = Annotated[tuple[IconSize, ...], BeforeValidator(_sizes, json_schema_input_type=str | tuple[IconSize, ...])]

ApprovalGlob = Annotated[Text, AfterValidator(_approval_glob)]
CallerGlob = Annotated[Text, AfterValidator(_caller_glob)]
ToolGlob = Annotated[
    Text,
    _fits("[^/]+/.+", "must be a glob over `server/tool`, such as `search/*`; `local/tool` for functions of the agent"),
]
ReleasedServer = Annotated[Text, AfterValidator(_released_server)]
StateKey = Annotated[Text, AfterValidator(_state_key)]
TraceUrl = Annotated[Text, AfterValidator(_trace_url)]
DatabaseUrl = Annotated[Text, AfterValidator(_database_url)]
AuthorizationUrl = Annotated[Text, AfterValidator(_authorization_url)]
_NO_SCOPE = "'VALUE' is no scope: it may hold neither spaces, quotes nor backslashes"
Scope = Annotated[Text, _fits(r"[!#-\[\]-~]+", _NO_SCOPE)]
_GRANTS = (
    "view:agents, run:agents, view:instructions, edit:agents and delete:agents, each alone or with :NAME, "
    "create:agents, view:metrics, view:gateway, view:calls and cancel:calls"
)
Grant = Annotated[Text, _fits(GRANT, f"'VALUE' is no grant; grants are {_GRANTS}")]
Hashes = Annotated[tuple[str, ...], BeforeValidator(_hashes, json_schema_input_type=str | tuple[str, ...])]
KeyName = Annotated[
    Text, _fits("[A-Za-z0-9][A-Za-z0-9_.@-]*", "'VALUE' may hold only letters, digits, '_', '.', '@' and '-'")
]
NotAfter = Annotated[datetime, BeforeValidator(_not_after, json_schema_input_type=str)]
Algorithms = Annotated[
    tuple[Annotated[Text, _fits("|".join(ALGORITHMS), f"'VALUE' is not one of {', '.join(ALGORITHMS)}")], ...],
    AfterValidator(_some_and_unique),
    Field(json_schema_extra={"minItems": 1, "uniqueItems": True}),
]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_texts, json_schema_input_type=str | tuple[Text, ...])]
