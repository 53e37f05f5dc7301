"""Finds the secrets among configured values, by the name of their key, variable or header, or their place in a URL.

They are redacted in all that the gateway writes. Redacting a harmless value is better than showing a secret.
"""

import base64
import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from urllib.parse import parse_qsl, unquote, urlsplit

# At the end of a name: `max_tokens`, `token_url` and `DB_PASSWORD_FILE` hold none. `PWD` is the working directory.
_SECRET_NAME = re.compile(
    r"(?:password|passwd|passphrase|passcode|secret|token|api_?key|credentials?|bearer|authorization|cookie"
    r"|aws_bearer_token_bedrock|state_keys|_pwd|(?:^|_)(?:key|auth|dsn|sig|signature))$"
)
_LONGEST_END = 32
"""Characters at the end of a name that are looked at; names from clients may have any length."""
_HARMLESS_HEADER = re.compile(r"accept.*|content-.*|user-agent|mcp-.*|trace(?:parent|state)|cache-control|origin|host")
_LOOKS_RANDOM = re.compile(r"(?=\S*[0-9])(?=\S*[A-Za-z])\S{12,}")
_PLACEHOLDER = re.compile(r"\$\{[^}]*\}")
_MOST_LEVELS = 20


def is_secret_name(name: str) -> bool:
    """Return True if a key, variable, header or query parameter holds a secret (`api_key`, `X-Auth-Token`, …)."""
    bare = name.rstrip("0123456789")
    return _ends_secret((bare if bare == name else bare.removesuffix("_"))[-_LONGEST_END:])


@lru_cache(maxsize=1024)
def _ends_secret(name: str) -> bool:
    return _SECRET_NAME.search(name.lower().replace("-", "_")) is not None


def secret_values(document: object) -> frozenset[str]:
    """Return every secret in a parsed YAML document, a dumped settings object or an environment, at any depth."""
    found = _found(document, "", _MOST_LEVELS)
    return frozenset(value for value in found if value and not _PLACEHOLDER.fullmatch(value))


def secrets_of_environment(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the secrets of an environment, without folders (`SIGNING_KEY=/etc/keys`), which many messages name."""
    return frozenset(value for value in secret_values(environ) if not _is_folder(value))


def _is_folder(value: str) -> bool:
    return os.path.isabs(value) and os.path.isdir(value)  # noqa: PTH112, PTH117  Path's own raises for what is too long


def _found(value: object, name: str, levels: int) -> Iterator[str]:
    if levels == 0:
        return
    if isinstance(value, Mapping):
        yield from _in_mapping(value, name, levels)
    elif isinstance(value, str):
        yield from _in_text(value.strip(), name)
    elif isinstance(value, Sequence):
        yield from _in_arguments([one for one in value if isinstance(one, str)])
        for one in value:
            yield from _found(one, name, levels - 1)


def _in_mapping(mapping: Mapping[object, object], name: str, levels: int) -> Iterator[str]:
    for key, one in mapping.items():
        if name.endswith("headers") and isinstance(one, str) and not _HARMLESS_HEADER.fullmatch(str(key).lower()):
            yield from _with_and_without_scheme(one.strip()) if _LOOKS_RANDOM.search(one) else ()
        yield from _found(one, str(key), levels - 1)


def _in_text(text: str, name: str) -> Iterator[str]:
    if is_secret_name(name):
        yield from _with_and_without_scheme(text)
    if "://" in text:
        yield from _in_url(text)


def _in_arguments(arguments: Sequence[str]) -> Iterator[str]:
    """Find values of `--api-key=x` and `--api-key x` among the arguments of a stdio server."""
    for argument, following in pairwise([*arguments, ""]):
        name, assigned, value = argument.partition("=")
        if name.startswith("-") and is_secret_name(name.lstrip("-")):
            yield value if assigned else following


def _with_and_without_scheme(value: str) -> Iterator[str]:
    """Yield `Bearer x` and `x`."""
    yield value
    scheme, _, rest = value.partition(" ")
    if scheme.isalpha():
        yield rest.strip()


def _in_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    userinfo = parts.netloc.rpartition("@")[0]
    if userinfo:
        user, _, password = userinfo.partition(":")
        yield from {userinfo, password or user, unquote(password or user)}
        yield base64.b64encode(unquote(userinfo).encode()).decode()  # what it becomes on the wire
    for name, value in parse_qsl(parts.query):
        if is_secret_name(name):
            yield value
