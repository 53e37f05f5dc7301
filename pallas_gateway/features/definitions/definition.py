r"""A definition as clients write it, as it is stored, and as settings of an agent. Pure.

Clients write camelCase or the snake_case of `agents.yaml`; snake_case is stored. Problems have the paths that the
client has written.

Of placeholders, only those that tell nothing about the machine are taken. fast-agent replaces `{{name}}` twice:
`currentDate` and `url` when an agent is made, all others when it starts. A plain text is never read as a path or
fetched as a URL. Refused is whatever either pass, or one of a later version, could take for a placeholder: any
spelling, the escape `\{{`, and what could result from parts that are replaced first.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic.alias_generators import to_camel

from pallas_gateway.config.loading.error_messages import located, validated, without, wrong_places
from pallas_gateway.config.model.agents import AgentSettings
from pallas_gateway.config.model.parameters import DefaultParameters
from pallas_gateway.config.problems import did_you_mean
from pallas_gateway.features.definitions.records import Definition, Place

ALLOWED = ("{{currentDate}}", "{{serverInstructions}}")
_OF_FAST_AGENT = "__FAST_AGENT_"
"""Begins the texts that stand for escaped braces within a pass of fast-agent's."""
_UNSEEN = r"\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_PLACEHOLDER = re.compile(rf"\{{[{_UNSEEN}]*\{{[\s{_UNSEEN}]*(?:[^\W\d]|\{{)")
_ALLOWED = re.compile("|".join(map(re.escape, ALLOWED)))
_SHOWN = 60


def why_refused(text: str) -> str | None:
    """Return what is wrong with the placeholders of a text; None if there are none but those that are allowed."""
    start = text.find("${")
    if start >= 0 and (end := text.find("}", start)) >= 0:
        return f"'{_shown(text[start : end + 1])}': variables of the environment cannot be used"
    if _OF_FAST_AGENT in text:
        return f"must not hold '{_OF_FAST_AGENT}', which fast-agent uses itself"
    for value in ("x", ""):  # `serverInstructions` may be empty, and then joins what stands around it
        rest = _ALLOWED.sub(value, text)
        if (found := _PLACEHOLDER.search(rest)) is not None:
            return f"'{_shown(rest[found.start() :])}': only {' and '.join(ALLOWED)} can be used between double braces"
    return None


def _shown(text: str) -> str:
    return " ".join(text[:_SHOWN].split())


KEYS = (
    "title", "description", "icon", "instruction", "model", "servers", "tools", "agents", "params", "examples",
    "max_iterations", "loop_repeat_threshold", "call_timeout_seconds", "max_in_flight", "approve", "tool_limits",
    "max_tokens_per_call", "human_input",
)  # fmt: skip
"""The keys of a definition as stored; those of `AgentSettings`, but for `params`."""
PARAMS = tuple(key for key in DefaultParameters.model_fields if key != "extra")
_SNAKE_CASE = {to_camel(key): key for key in (*KEYS, *PARAMS)}
LONGEST_INSTRUCTION = 100_000
LARGEST = 256 * 1024
"""Bytes of a definition as JSON."""
DEEPEST = 32
_LONGEST = {"title": 200, "description": 2000, "icon": 2000, "model": 300}
_MOST = {"servers": 100, "tools": 1000, "agents": 100, "examples": 20, "approve": 200, "tool_limits": 200}
_LONGEST_ENTRY = 300
_LONGEST_EXAMPLE = 2000
_LARGEST_NUMBER = 2**53
_UNKNOWN_KEYS = 20
"""Unknown keys that are named, because a similar known one is looked for."""
_PROMPTS = ("instruction", "params")
"""Texts that only models read; people see the others."""
_ICON = re.compile(r"https?://|data:image/|(?![a-z][a-z0-9+.-]*:)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A definition as read: the valid part of it as stored, and the problems of the rest.

    `written` has the client's spelling of keys, to name places in it.
    """

    definition: Definition
    problems: tuple[Place, ...] = ()
    written: Mapping[str, str] = field(default_factory=dict)

    def place(self, path: str, message: str) -> Place:
        """Return a problem at a path of the stored form, as the client wrote it."""
        return Place(_as_written(path, self.written), message)


def parsed(written: object) -> Parsed:
    """Return the definition that a client has sent, without its name."""
    if not isinstance(written, dict):
        return Parsed({}, (Place("", "must be an object"),))
    if (problems := tuple(_malformed(written))) or (problems := tuple(_too_large(written))):
        return Parsed({}, problems)
    spelling: dict[str, str] = {}
    data, unknown = _in_snake_case(written, KEYS, "", spelling)
    if isinstance(params := data.get("params"), dict):
        data["params"], more = _in_snake_case(params, PARAMS, "params.", spelling)
        unknown += more
    known = {key: value for key, value in data.items() if value is not None}
    definition, wrong = _checked(known)
    found = [Place(_as_written(one.path, spelling), one.message) for one in wrong]
    return Parsed(definition, (*unknown, *found), spelling)


def settings_of(definition: Definition) -> AgentSettings:
    """Return a stored definition as settings; what a rule adds is not in them."""
    return AgentSettings.model_validate(_as_settings(definition))


def definition_of(settings: AgentSettings, instruction: str) -> dict[str, Any]:
    """Return an agent of `agents.yaml` as a definition; what definitions cannot have is left out."""
    given = settings.model_fields_set | {"instruction"}
    values = {**settings.model_dump(mode="json", exclude_unset=True), "instruction": instruction}
    data = {key: value for key in KEYS if (value := values.get(key)) is not None and key in given}
    params = {key: value for key in PARAMS if (value := values.get("default_params", {}).get(key)) is not None}
    return {**data, "params": params} if params else data


def merged_patch(present: Any, patch: Any) -> Any:
    """Apply a JSON Merge Patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(present) if isinstance(present, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merged_patch(merged.get(key), value)
    return merged


def patched(present: Definition, patch: object) -> object:
    """Return a definition with a patch of a client; keys keep the spelling of the patch, so that problems have it."""
    if not isinstance(patch, dict) or any(_malformed(patch)):  # one that is too deep would exhaust the stack
        return patch
    stored = {_spelled(key, KEYS): key for key in patch if isinstance(key, str)}
    base = {stored.get(key, to_camel(key)): value for key, value in present.items()}
    params = patch.get("params")
    if isinstance(params, dict) and isinstance(base.get("params"), dict):
        names = {_spelled(key, PARAMS): key for key in params if isinstance(key, str)}
        base["params"] = {names.get(key, key): value for key, value in base["params"].items()}
    return merged_patch(base, patch)


def in_camel_case(definition: Definition) -> dict[str, Any]:
    """Return a stored definition as the HTTP API shows it; the names within `params` stay as they are."""
    return {to_camel(key): value for key, value in definition.items()}


def _malformed(written: dict[Any, Any]) -> Iterator[Place]:
    """Yield problems of JSON itself; without recursion, which a deep document would exhaust."""
    waiting: list[tuple[str, object, int]] = [("", written, 1)]
    while waiting:
        path, value, depth = waiting.pop()
        if isinstance(value, str) and (why := _why_no_text(value)):
            yield Place(path, why)
        elif isinstance(value, (int, float)) and not abs(value) <= _LARGEST_NUMBER:  # also NaN
            yield Place(path, f"must be a number of at most {_LARGEST_NUMBER}")
        elif not isinstance(value, (dict, list)):
            continue
        elif depth > DEEPEST:
            yield Place(_outermost(path), f"is nested deeper than {DEEPEST} levels")
            return
        else:
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for key, inner in pairs:
                if isinstance(key, str) and (why := _why_no_text(key)):
                    yield Place(path, f"has a key that {why}")
                    return
                waiting.append((f"{path}.{key}" if path else str(key), inner, depth + 1))


def _why_no_text(value: str) -> str | None:
    if "\0" in value:
        return "holds the character NUL"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "is no valid Unicode: half of a character (a lone surrogate)"
    return None


def _too_large(written: dict[str, Any]) -> Iterator[Place]:
    size = len(json.dumps(written, ensure_ascii=False).encode())
    if size <= LARGEST:
        return
    instruction = written.get("instruction")
    if isinstance(instruction, str) and len(instruction) > LONGEST_INSTRUCTION:
        yield Place("instruction", f"must have at most {LONGEST_INSTRUCTION} characters")
    else:
        yield Place("", f"must have at most {LARGEST} bytes as JSON; this has {size}")


def _in_snake_case(
    written: dict[str, Any], known: tuple[str, ...], prefix: str, spelling: dict[str, str]
) -> tuple[dict[str, Any], list[Place]]:
    """Return the known keys in snake_case, and the problems of the others; `spelling` gets how each was written."""
    data: dict[str, Any] = {}
    problems: list[Place] = []
    unknown = [key for key in written if _spelled(key, known) not in known]
    problems += (Place(f"{prefix}{key}", f"unknown key{_hint(key, known)}") for key in unknown[:_UNKNOWN_KEYS])
    if len(unknown) > _UNKNOWN_KEYS:
        problems.append(Place(prefix.rstrip("."), f"has {len(unknown)} unknown keys"))
    for key, value in written.items():
        name = _spelled(key, known)
        if name not in known:
            continue
        if name in data:
            problems.append(Place(f"{prefix}{key}", f"is given twice, also as '{spelling[f'{prefix}{name}']}'"))
        else:
            data[name] = value
            spelling[f"{prefix}{name}"] = key
    return data, problems


def _hint(key: str, known: tuple[str, ...]) -> str:
    if key == "extra":
        return "; further parameters of a provider can be set in agents.yaml only"
    return did_you_mean(key, (*known, *map(to_camel, known))) if len(key) <= _LONGEST["title"] else ""


def _spelled(key: str, known: tuple[str, ...]) -> str:
    name = _SNAKE_CASE.get(key, key)
    return name if name in known else key


def _checked(known: dict[str, Any]) -> tuple[dict[str, Any], list[Place]]:
    """Return the valid part of a definition, as stored, and its problems."""
    long = [*_too_long(known)]
    data = _as_settings({key: value for key, value in known.items() if key not in {one.path for one in long}})
    settings, errors = validated(AgentSettings, data)
    places = [Place(_as_stored(path), message) for path, message in located(AgentSettings, errors)]
    data = without(data, wrong_places(errors))
    settings = settings or AgentSettings.model_validate(data)
    values = settings.model_dump(mode="json", exclude_unset=True)
    definition = {_as_stored(key): value for key, value in values.items()}
    if "params" in definition:
        definition["params"] = {key: value for key, value in definition["params"].items() if value is not None}
    if "instruction" not in known:
        places.append(Place("instruction", "is required"))
    return definition, [*long, *places, *_bad_texts(definition)]


def _too_long(known: dict[str, Any]) -> Iterator[Place]:
    """Yield lists and texts that are too long, before each of their entries is judged."""
    for key, most in _MOST.items():
        if isinstance(value := known.get(key), (list, dict)) and len(value) > most:
            yield Place(key, f"must have at most {most} entries")
    for key, most in {**_LONGEST, "instruction": LONGEST_INSTRUCTION}.items():
        if isinstance(value := known.get(key), str) and len(value) > most:
            yield Place(key, f"must have at most {most} characters")


def _bad_texts(definition: Mapping[str, Any]) -> Iterator[Place]:
    for path, text in _texts("", definition):
        if (why := why_refused(text)) is not None:
            yield Place(path, why)
        top = path.partition(".")[0]
        line = text.replace("\n", "") if top == "examples" else text
        if top not in _PROMPTS and (why := _why_unreadable(line)) is not None:
            yield Place(path, why)
        if top == "icon" and not _ICON.match(text):
            yield Place(path, "must be an http:// or https:// URL, one of data:image/…, or relative to the gateway's")
        most = _LONGEST_EXAMPLE if top == "examples" else _LONGEST_ENTRY
        if top in _MOST and len(text) > most:
            yield Place(path, f"must have at most {most} characters")


def _texts(path: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, (dict, list, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            inside = f"{path}.{key}" if path else str(key)
            if isinstance(key, str):
                yield inside, key
            yield from _texts(inside, inner)


def _why_unreadable(text: str) -> str | None:
    """Return why people could be misled by how a text looks: it has control characters, or those that turn text."""
    for one in text:
        if unicodedata.category(one) in {"Cc", "Cf", "Co", "Zl", "Zp"} and one != "\u200d":  # joins emoji
            return f"holds the control character U+{ord(one):04X}"
    return None


def _as_settings(definition: Mapping[str, Any]) -> dict[str, Any]:
    return {"default_params" if key == "params" else key: value for key, value in definition.items()}


def _as_stored(path: str) -> str:
    top, dot, rest = path.partition(".")
    return f"params{dot}{rest}" if top == "default_params" else path


def _as_written(path: str, spelling: Mapping[str, str]) -> str:
    top, *rest = path.split(".")
    if rest and (name := spelling.get(f"{top}.{rest[0]}")) is not None:
        rest[0] = name
    return ".".join([spelling.get(top, top), *rest])


def _outermost(path: str) -> str:
    return path.partition(".")[0]
