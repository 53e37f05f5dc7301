"""`WWW-Authenticate` read by its grammar (RFC 9110 11.6.1, RFC 6750 3), so that a header that is almost right fails."""

import re
from dataclasses import dataclass, field

import httpx

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = r'"((?:[\t \x21\x23-\x5b\x5d-\x7e]|\\[\t \x21-\x7e])*)"'
_CHALLENGE = re.compile(rf"({_TOKEN})(?: +(.+))?")
_PARAMETER = re.compile(rf"({_TOKEN})[ \t]*=[ \t]*(?:({_TOKEN})|{_QUOTED})[ \t]*(?:,[ \t]*(?=\S)|$)")
_DESCRIPTION = re.compile(r"[\x20-\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6750 allows no quote and no backslash in these


@dataclass(frozen=True)
class Challenge:
    """One challenge: its scheme and its parameters by lower-case name."""

    scheme: str
    parameters: dict[str, str] = field(default_factory=dict)


def parse_challenge(value: str) -> Challenge:
    """Read a header value that holds exactly one challenge.

    Raises:
        ValueError: it breaks the grammar, names a parameter twice, or holds more than one challenge.
    """
    match = _CHALLENGE.fullmatch(value)
    if match is None:
        raise ValueError(f"no challenge: {value!r}")
    rest, parameters = match[2] or "", dict[str, str]()
    while rest:
        parameter = _PARAMETER.match(rest)
        if parameter is None or parameter[1].lower() in parameters:
            raise ValueError(f"cannot read {rest!r} of {value!r}")
        plain, quoted = parameter[2], parameter[3]
        parameters[parameter[1].lower()] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        rest = rest[parameter.end() :]
    for name in ("error", "error_description", "scope"):
        if name in parameters and not _DESCRIPTION.fullmatch(parameters[name]):
            raise ValueError(f"{name} holds what RFC 6750 forbids: {value!r}")
    return Challenge(match[1], parameters)


def challenge_of(headers: httpx.Headers) -> Challenge | None:
    """The challenge of a response, None if it has none; `AssertionError` if it has several headers."""
    values = headers.get_list("www-authenticate")
    assert len(values) <= 1, values
    return parse_challenge(values[0]) if values else None
