"""The last line of defence: secrets taken out of whatever the gateway says about itself.

Tokens have a type of their own and are not put into messages in the first place; this catches what others wrote: an
error that echoes a header, a library's record, a traceback. Log records, reasons, failures, health messages and
notifications pass it. What an agent, a tool or a model says is data and does not.

Known are the configured secrets, for the process, and the tokens of the running call, in its own context only: there is
no table of tokens. Whatever else looks like a secret is found by its shape.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from pallas_gateway.config.loading.secret_values import is_secret_name
from pallas_gateway.telemetry.current_call import current_call

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

HIDDEN = "****"
SHORTEST_KNOWN = 6
"""Characters; hiding every occurrence of a shorter value would make a log unreadable, and it is no secret."""

LONGEST_QUOTE = 40
"""Characters of a client's own text in a sentence about its request."""
_MARGIN = 1024
"""Characters behind a cut that are cleaned as well: a secret that begins before the cut is recognised by them."""

# Every pattern here takes time in proportion to the text, whatever the text is: a repetition that can fail is
# possessive (`*+`), and its characters are not looked at again from another start. A test holds them to it.
_NUMBER = re.compile(r"\b(?:0x)?[0-9a-f]++\b(?:-++[0-9a-f]++\b)*+", re.IGNORECASE)
_START = r"(?:\b|(?<=\\[nrt]))"  # of a word, also behind the letter of a newline that JSON has escaped
_WORD = r"""[^\s"'\\,;&)}\]<>]++"""
_NAMED = re.compile(
    r"""(?P<name>authorization|cookie|x-pallas-nested-call|api[_-]?key|(?:access|refresh|id|auth)[_-]?token
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
# A JWT is one with its first part, so that one whose end was cut off is hidden as well.
_SHAPES = re.compile(
    rf"{_START}"
    r"(?:eyJ[\w-]{4,}+(?:\.{1,2}[\w-]++)*+|(?:sk|pk|rk)-[\w*-]{8,}+|pgw_[\w-]{6,}+|gh[opsur]_\w{16,}+"
    r"|github_pat_\w{16,}+|xox[a-z]-[\w-]{8,}+|AKIA[0-9A-Z]{12,}+|AIza[\w-]{20,}+|hf_\w{16,}+|glpat-[\w-]{12,}+)"
)
# Only where one of these stands can the pattern beside it match: looking for them costs a tenth of the pattern.
_NAMED_HINTS = (
    "authorization",
    "cookie",
    "nested-call",
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
    """`text` without `known` values and without what looks like a secret. Pure; what is hidden once stays as it is."""
    return _without_shapes(without(text, known))


def without(text: str, known: Collection[str]) -> str:
    """`text` without `known` values alone."""
    for value in known:
        if value in text:
            text = text.replace(value, HIDDEN)
    return text


def forms_of(secret: str) -> frozenset[str]:
    """How a secret may be written: as it is, in a URL, in JSON, in base64; none if it is too short to be looked for."""
    if len(secret) < SHORTEST_KNOWN:
        return frozenset()
    encoded = secret.encode("utf-8", "surrogatepass")
    in_base64 = {base64.b64encode(encoded).decode(), base64.urlsafe_b64encode(encoded).decode()}
    in_urls = {quote(encoded, safe=""), quote(encoded), quote_plus(encoded)}
    return frozenset({secret, json.dumps(secret)[1:-1], *in_urls, *in_base64, *(one.rstrip("=") for one in in_base64)})


class KnownSecrets:
    """Secrets in all their forms, the longest first: one may be part of another."""

    def __init__(self) -> None:
        self.forms: tuple[str, ...] = ()

    def add(self, secrets: Iterable[str]) -> None:
        """Keep these out of everything, too."""
        forms = {form for secret in secrets for form in forms_of(secret)}
        self.forms = tuple(sorted({*self.forms, *forms}, key=lambda form: (-len(form), form)))


configured = KnownSecrets()
"""Headers of downstreams, keys of providers, secret variables. Never a caller's token."""


@contextmanager
def hiding(*secrets: str | None) -> Iterator[None]:
    """Keep these, too, out of what is said inside the block and in tasks started in it."""
    outer, inner = current_call.get(), KnownSecrets()
    inner.forms = outer.secrets.forms if outer.secrets is not None else ()
    inner.add(secret for secret in secrets if secret)
    token = current_call.set(replace(outer, secrets=inner))
    try:
        yield
    finally:
        current_call.reset(token)


def hide_in_this_call(secret: str) -> None:
    """Keep a token that the running call got meanwhile out of what it says from now on; outside of calls, nothing."""
    known = current_call.get().secrets
    if known is not None and secret not in _known_here():
        known.add([secret])


def _known_here() -> tuple[str, ...]:
    of_the_call = current_call.get().secrets
    return (*of_the_call.forms, *configured.forms) if of_the_call is not None else configured.forms


def without_numbers(reason: str | None) -> str:
    """A reason by which to tell whether another one says the same: an address or a time is new at every try."""
    return _NUMBER.sub(lambda match: "#" if any(map(str.isdigit, match[0])) else match[0], reason or "")


def cleaned(text: str) -> str:
    """`redacted`, with everything known here and now."""
    return redacted(text, _known_here())


def shortened(text: str, limit: int) -> str:
    """`cleaned`, and cut to `limit` characters before that: what follows costs nothing, however long it is.

    No part of a secret is shown by the cut. Some text behind it is cleaned as well, so that a secret which the cut
    would split is still recognised, and as much is then dropped: at its end, a secret may be incomplete.
    """
    margin, known = _margin()
    begin = text[: 4 * limit + 8 * margin]  # enough where much of it is hidden
    shown = redacted(begin, known)
    if len(begin) == len(text):
        return shown if len(shown) <= limit else f"{shown[:limit]}…"
    # A placeholder may be longer than what it hides, by less than half, so twice the margin covers the margin.
    return f"{shown[: max(0, len(shown) - 2 * margin)][:limit]}…"


def end_of(text: str, limit: int) -> str:
    """The last `limit` characters of a text, without secrets, from the beginning of a word."""
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
    """A client's value for an error message: a text in quotes and `shortened`, else the name of its type."""
    if isinstance(value, str):
        return repr(shortened(value, LONGEST_QUOTE))
    return "null" if value is None else type(value).__name__


def cleaned_data(value: Any) -> Any:
    """JSON-like data without what is known here and now; nothing is guessed, because data may look like anything."""
    return _cleaned_data(value, _known_here())


def cleaned_fields(value: Any, name: str = "") -> Any:
    """A log record's fields, `cleaned` at any depth, and hidden where their own name says that they are secret."""
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
    """Whether a field of this name is a secret; a record's `key` is the place of something in a file."""
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
    """`headers.Authorization: environment variable X is not set` tells of a place."""
    if match["between"].endswith(": ") and _is_word(match["value"]):
        return match[0]
    return f"{match['name']}{match['between']}{HIDDEN}"


def _unless_prose(match: re.Match[str]) -> str:
    """`bearer authentication` is no token."""
    if _is_word(match["value"].rstrip(".")):
        return match[0]
    return f"{match['scheme']}{match['between']}{HIDDEN}"


def _is_word(text: str) -> bool:
    """A token of letters only would have more of them, in both cases."""
    return text.isalpha() and text[1:].islower() and len(text) < 24  # noqa: PLR2004  longer than any word
