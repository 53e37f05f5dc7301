"""Removes secrets from log records, reasons, failures, health messages and notifications: the last line of defence.

The gateway's own code keeps tokens in a type that cannot be printed; this is for text of others, such as an error that
quotes a header, a library's record or a traceback. Output of agents, tools and models is data and is not changed.

Known secrets are the configured ones, for the process, and the tokens of the running call, in its context only: there
is no table of tokens. Other secrets are found by their shape.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote, quote_plus

from pallas_gateway.config.loading.secret_values import is_secret_name, secret_values
from pallas_gateway.telemetry.current_call import current_call

HIDDEN = "****"
SHORTEST_KNOWN = 6  # characters; hiding every occurrence of a shorter value would make a log unreadable
LONGEST_QUOTE = 40  # characters of a client's text in an error about its request
_MARGIN = 1024  # characters behind a cut that are searched too, for a secret that begins before the cut

# The time of every pattern is proportional to the text: a repetition that can fail is possessive (`*+`), and its
# characters are not read again from another start. A test measures this.
_NUMBER = re.compile(r"\b(?:0x)?[0-9a-f]++\b(?:-++[0-9a-f]++\b)*+", re.IGNORECASE)
_START = r"(?:\b|(?<=\\[nrt]))"  # of a word, also behind the letter of a newline that JSON has escaped
_WORD = r"""[^\s"'\\,;&)}\]<>]++"""
_NAMED = re.compile(
    r"""(?P<name>authorization|cookie|api[_-]?key|(?:access|refresh|id|auth)[_-]?token
    |(?<![a-z-])(?:(?!x-)[a-z-])*+x-[a-z-]*+(?<=token)|client[_-]?secret|password|passwd|secret)
    (?P<between>\\?["']?\s*+[:=]\s*+(?:b?\\?["'])?|\\?["']\s*+,\s*+b?\\?["'])"""
    rf"""(?P<value>(?:(?:bearer|basic|digest|negotiate|token|apikey)\s++)?{_WORD})""",
    re.IGNORECASE | re.VERBOSE,
)
_SCHEME = re.compile(
    rf"{_START}(?P<scheme>bearer|basic)(?P<between>\s++|%20)(?P<value>[\w.~+/=-]{{6,}}+)", re.IGNORECASE
)
_USERINFO = re.compile(r"""://[^\s/@"'<>]++@""")
_QUERY = re.compile(
    r"(?P<name>[?&;](?:[a-z_-]*+(?:(?<=token)|(?<=secret)|(?<=password)|(?<=key))|auth|sig|signature|code)=)"
    r"[^\s\"'\\&;#<>]++",
    re.IGNORECASE,
)
# A JWT is recognised by its first part, so that a truncated one is hidden too.
_SHAPES = re.compile(
    rf"{_START}"
    r"(?:eyJ[\w-]{4,}+(?:\.{1,2}[\w-]++)*+|(?:sk|pk|rk)-[\w*-]{8,}+|pgw_[\w-]{6,}+|gh[opsur]_\w{16,}+"
    r"|github_pat_\w{16,}+|xox[a-z]-[\w-]{8,}+|AKIA[0-9A-Z]{12,}+|AIza[\w-]{20,}+|hf_\w{16,}+|glpat-[\w-]{12,}+)"
)
# The pattern can match only if one of these occurs; this check takes a tenth of the pattern's time.
_NAMED_HINTS = (
    "authorization",
    "cookie",
    "api_key",
    "api-key",
    "apikey",
    "_token",
    "-token",
    "accesstoken",
    "refreshtoken",
    "idtoken",
    "authtoken",
    "secret",
    "passw",
)
_SHAPE_HINTS = ("eyj", "k-", "pgw_", "gh", "xox", "akia", "aiza", "hf_", "glpat-")


def redacted(text: str, known: Collection[str] = ()) -> str:
    """`text` without `known` values and without text in the shape of a secret. Pure and idempotent."""
    return _without_shapes(without(text, known))


def without(text: str, known: Collection[str]) -> str:
    for value in known:
        if value in text:
            text = text.replace(value, HIDDEN)
    return text


def forms_of(secret: str) -> frozenset[str]:
    """A secret as plain text, in a URL, in JSON and in base64; none if it is too short to be searched for."""
    if len(secret) < SHORTEST_KNOWN:
        return frozenset()
    encoded = secret.encode("utf-8", "surrogatepass")
    in_base64 = {base64.b64encode(encoded).decode(), base64.urlsafe_b64encode(encoded).decode()}
    in_urls = {quote(encoded, safe=""), quote(encoded), quote_plus(encoded)}
    return frozenset({secret, json.dumps(secret)[1:-1], *in_urls, *in_base64, *(one.rstrip("=") for one in in_base64)})


class KnownSecrets:
    """Secrets in all their forms, the longest first, because one may be part of another."""

    def __init__(self) -> None:
        self.forms: tuple[str, ...] = ()

    def add(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in forms_of(secret)}
        self.forms = tuple(sorted({*self.forms, *forms}, key=lambda form: (-len(form), form)))


configured = KnownSecrets()
"""Headers of downstreams, keys of providers, secret variables. Never a caller's token."""


@contextmanager
def hiding(*secrets: str | None) -> Iterator[None]:
    """Hide these too, inside the block and in tasks started in it."""
    outer, inner = current_call.get(), KnownSecrets()
    inner.forms = outer.secrets.forms if outer.secrets is not None else ()
    if any(secrets):
        inner.add(filter(None, secrets))
    token = current_call.set(replace(outer, secrets=inner))
    try:
        yield
    finally:
        current_call.reset(token)


def holds(value: object, text: str) -> bool:
    """Return True if a value, such as settings, contains a text. Strings are searched directly: `repr` escapes."""
    if isinstance(value, str):
        return text in value
    if isinstance(value, bytes):
        return text.encode(errors="surrogatepass") in value
    if isinstance(value, Mapping):
        return any(holds(one, text) for pair in value.items() for one in pair)
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(holds(one, text) for one in value)
    shown = repr(value)
    return text in shown or repr(text)[1:-1] in shown


def hide_in_this_call(secret: str) -> None:
    """Hide a token that the running call has received; without effect outside of calls."""
    known = current_call.get().secrets
    if known is not None and secret not in _known_here():
        known.add([secret])


def hide_credentials_in_this_call(credentials: Mapping[str, Any]) -> None:
    """Hide the secrets among these values, by their names; without effect outside of calls."""
    for secret in secret_values(credentials):
        hide_in_this_call(secret)


def _known_here() -> tuple[str, ...]:
    of_the_call = current_call.get().secrets
    return (*of_the_call.forms, *configured.forms) if of_the_call is not None else configured.forms


def without_numbers(reason: str | None) -> str:
    """A reason without numbers, to compare it with another one: addresses and times change at every attempt."""
    return _NUMBER.sub(lambda match: "#" if any(map(str.isdigit, match[0])) else match[0], reason or "")


def storable(text: str) -> str:
    """Text without NUL and halves of surrogate pairs, which databases refuse and models and tokens may have."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def cleaned(text: str) -> str:
    """`redacted`, with the secrets known here and now."""
    return redacted(text, _known_here())


def shortened(text: str, limit: int) -> str:
    """`cleaned` and cut to `limit` characters; the text behind the cut costs nothing.

    The cut shows no part of a secret: a margin behind it is cleaned too, so that a secret across the cut is recognised,
    and is then dropped, because a secret at its end may be incomplete.
    """
    margin, known = _margin()
    begin = text[: 4 * limit + 8 * margin]  # enough even if much of it is hidden
    shown = redacted(begin, known)
    if len(begin) == len(text):
        return shown if len(shown) <= limit else f"{shown[:limit]}…"
    # A placeholder is at most half longer than its secret, so twice the margin covers the margin.
    return f"{shown[: max(0, len(shown) - 2 * margin)][:limit]}…"


def end_of(text: str, limit: int) -> str:
    """The last `limit` characters of a text, without secrets, from the start of a word."""
    margin, known = _margin()
    end = text[-(4 * limit + 8 * margin) :]
    shown = redacted(end, known)
    if len(end) == len(text):
        return shown if len(shown) <= limit else f"…{shown[-limit:]}"
    words = shown[2 * margin :].split(maxsplit=1)
    return f"…{words[-1][-limit:] if len(words) > 1 else ''}"


def _margin() -> tuple[int, tuple[str, ...]]:
    known = _known_here()
    return max(_MARGIN, *map(len, known)) if known else _MARGIN, known


def quoted(value: object) -> str:
    """A client's value for an error message: text in quotes and `shortened`, otherwise the name of its type."""
    if isinstance(value, str):
        return repr(shortened(value, LONGEST_QUOTE))
    return "null" if value is None else type(value).__name__


def cleaned_data(value: Any) -> Any:
    """JSON-like data without known secrets; shapes are not searched for, because data may have any."""
    return _cleaned_data(value, _known_here())


def cleaned_fields(value: Any, name: str = "") -> Any:
    """A log record's fields, `cleaned` at any depth, and hidden if their name is that of a secret."""
    if isinstance(value, str):
        return HIDDEN if hides_its_value(name) else cleaned(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {cleaned(str(key)): cleaned_fields(one, str(key)) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [cleaned_fields(one, name) for one in value]
    return cleaned(str(value))


def hides_its_value(name: str) -> bool:
    """Return true if a field of this name is a secret; a record's `key` is a place in a file."""
    return name != "key" and is_secret_name(name)


def _cleaned_data(value: Any, known: Collection[str]) -> Any:
    if isinstance(value, str):
        return without(value, known)
    if isinstance(value, Mapping):
        return {key: _cleaned_data(one, known) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned_data(one, known) for one in value]
    return value


def _without_shapes(text: str) -> str:
    folded = text.lower()
    if any(hint in folded for hint in _NAMED_HINTS):
        text = _NAMED.sub(_named_unless_prose, text)
    if "bearer" in folded or "basic" in folded:
        text = _SCHEME.sub(_unless_prose, text)
    if "://" in folded and "@" in folded:
        text = _USERINFO.sub(f"://{HIDDEN}@", text)
    if "=" in folded and ("?" in folded or "&" in folded or ";" in folded):
        text = _QUERY.sub(rf"\g<name>{HIDDEN}", text)
    if any(hint in folded for hint in _SHAPE_HINTS):
        text = _SHAPES.sub(HIDDEN, text)
    return text


def _named_unless_prose(match: re.Match[str]) -> str:
    """Keeps text such as `headers.Authorization: environment variable X is not set`."""
    if match["between"].endswith(": ") and _is_word(match["value"]):
        return match[0]
    return f"{match['name']}{match['between']}{HIDDEN}"


def _unless_prose(match: re.Match[str]) -> str:
    """Keeps text such as `bearer authentication`."""
    if _is_word(match["value"].rstrip(".")):
        return match[0]
    return f"{match['scheme']}{match['between']}{HIDDEN}"


def _is_word(text: str) -> bool:
    """A token of letters only is longer, and in both cases."""
    return text.isalpha() and text[1:].islower() and len(text) < 24  # noqa: PLR2004  longer than any word
