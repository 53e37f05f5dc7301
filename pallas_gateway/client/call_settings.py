"""Values of `--set` and `/set`, checked against the parameters that the agent's tool lists. Pure.

Names must be listed, texts are converted to the type of the parameter, and numbers must be in range; otherwise the call
would fail, and in a chat every later one. The gateway checks the contents of lists and objects.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Annotated, Any, NoReturn

import typer

from pallas_gateway.calls.forms import misfit_of_field
from pallas_gateway.calls.parameters import listed_names, schemas_by_name
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.config.model.parameters import parameter_name
from pallas_gateway.config.problems import did_you_mean

SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", help="NAME=VALUE: a parameter of the call; may be repeated.")
]
PARAMS = "params"
SYSTEM_PARAMETERS = {"append": "system_append", "override": "system_override"}

_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a JSON object",
    "string": "a text",
}

type Schemas = Mapping[str, Mapping[str, Any]]


def offered_by(input_schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parameters that a message tool lists, by name, with their schemas.

    A gateway lists only names; their schemas are known here. Those of newer parameters are empty.
    """
    whole = (input_schema.get("properties") or {}).get(PARAMS) or {}
    for schema in _forms(whole):
        if isinstance(properties := schema.get("properties"), dict):
            return {str(name): one if isinstance(one, dict) else {} for name, one in properties.items()}
        if names := listed_names(schema):
            known = schemas_by_name()
            return {name: known.get(name, {}) for name in names}
    return {}


def values_of(settings: Iterable[str], offered: Schemas) -> dict[str, Any]:
    """Return the values of `NAME=VALUE` texts.

    Raises:
        UsageError: a text has another form, or a value cannot be used.
    """
    values: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for setting in settings:
        name, has_value, text = setting.partition("=")
        if not has_value:
            raise UsageError(f"--set {setting}: write NAME=VALUE.")
        own_name = name_in(offered, name)
        if spelt.setdefault(own_name, name) != name:
            raise UsageError(f"--set {spelt[own_name]} and --set {name} are one parameter; give one of them.")
        values[own_name] = value_of(own_name, text, offered)
    return values


def name_in(offered: Container[str], name: str) -> str:
    """Return the name under which a parameter is offered; callers may write its camelCase name."""
    return name if name in offered else parameter_name(name)


def value_of(name: str, text: str, offered: Schemas) -> Any:
    """Return the value of `text`: parsed as JSON if that is accepted, else the text itself, else texts between commas.

    Raises:
        UsageError: the agent takes no such parameter, or no such value.
    """
    schema = schema_of(name, offered)
    for value in (_json_in(text), text, [one.strip() for one in text.split(",")]):
        if any(_is_of(value, form) for form in _forms(schema)):
            return value
    raise UsageError(f"{name} takes {described(schema)}, not {text:.60}.")


def schema_of(name: str, offered: Schemas) -> Mapping[str, Any]:
    """Return the schema of one parameter.

    Raises:
        UsageError: the agent takes no parameter of that name; lists those it takes.
    """
    if not offered:
        raise UsageError("This agent takes no parameters from its callers.")
    if name not in offered:
        near = did_you_mean(name, offered)
        raise UsageError(f"This agent takes no parameter '{name}'{near}. There are: {', '.join(offered)}.")
    return offered[name]


def described(schema: Mapping[str, Any]) -> str:
    """Describe the values of a parameter, such as `a number from 0 to 2`."""
    return (
        " or ".join(dict.fromkeys(_kind(form) for form in _forms(schema) if form.get("type") != "null")) or "anything"
    )


def table_of(chosen: Mapping[str, Any], offered: Schemas) -> list[tuple[str, str, str]]:
    """Return a row for each parameter: its name, its value if set, and the values it takes."""
    rows = [
        (name, json.dumps(chosen[name], ensure_ascii=False) if name in chosen else "", described(schema))
        for name, schema in offered.items()
    ]
    return rows + [
        (name, json.dumps(value, ensure_ascii=False), "not taken any more")
        for name, value in chosen.items()
        if name not in offered
    ]


def without_effect(notes: Mapping[str, Any]) -> str:
    """Format the notes of a result about parameters that were ignored or changed; empty without any."""
    ignored, changed = notes.get("ignored") or [], notes.get("changed") or {}
    parts = [f"no effect with this model: {', '.join(str(one) for one in ignored)}"] if ignored else []
    parts += [f"{name} was sent as {json.dumps(value, ensure_ascii=False)}" for name, value in changed.items()]
    return "; ".join(parts)


def system_parameter(kind: str | None, offered: Schemas) -> str:
    """Return the parameter that changes the agent's instruction; without a kind, the milder one that is listed.

    Raises:
        UsageError: callers may not change the instruction.
    """
    wanted = [SYSTEM_PARAMETERS[kind]] if kind else list(SYSTEM_PARAMETERS.values())
    for name in wanted:
        if name in offered:
            return name
    raise UsageError(f"This agent's callers may not change its instruction ({' or '.join(wanted)} is not offered).")


def _forms(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the alternatives of a schema, one for each type."""
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        for one in alternatives:
            yield from _forms(one)
        return
    types = schema.get("type")
    for type_ in types if isinstance(types, list) else [types]:
        yield {**schema, "type": type_}


def _json_in(text: str) -> Any:
    """Return the value of JSON text, and other text as it is."""
    try:
        return json.loads(text, parse_constant=_no_json)
    except ValueError:
        return text


def _no_json(constant: str) -> NoReturn:
    """Refuse `NaN` and `Infinity`, which Python reads as numbers."""
    raise ValueError(constant)


_OF_ANY_LENGTH: Mapping[str, type] = {"null": type(None), "object": dict, "array": list, "string": str}


def _is_of(value: Any, form: Mapping[str, Any]) -> bool:
    """Return True if a value is of a type, and one of its choices or within its bounds.

    The gateway refuses lengths, with its reason: else a list that is too long would pass for a text.
    """
    kind = form["type"]
    if kind in _OF_ANY_LENGTH and "enum" not in form:
        return isinstance(value, _OF_ANY_LENGTH[kind])
    return kind is None or misfit_of_field(form, value) is None


def _kind(form: Mapping[str, Any]) -> str:
    if "enum" in form:
        return "one of " + ", ".join(str(one) for one in form["enum"])
    kind = _KINDS.get(str(form["type"]), str(form["type"]))
    least, most = form.get("minimum"), form.get("maximum")
    if least is not None and most is not None:
        return f"{kind} from {least} to {most}"
    return kind if least is None else f"{kind}, at least {least}"
