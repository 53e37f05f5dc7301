"""Parameters of a call for its model: read from `params`, and completed by the agent's defaults.

Pure. Ranges and meanings are the configuration's (`config/model/parameters.py`), so that `default_params` and `params`
are one language; what a provider makes of them is the runtime's business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pallas_gateway.config.loading.error_messages import located, validated
from pallas_gateway.config.model.parameters import (
    LONGEST_SAMPLING_TEXT,
    MOST_ALLOWED_TOOLS,
    MOST_SEQUENCE_BREAKERS,
    PARAMETERS,
    SAMPLING_VALUE_SCHEMA,
    SEQUENCE_BREAKERS,
    SEQUENCE_BREAKERS_SCHEMA,
    CallParameters,
    DefaultParameters,
    is_sampling_value,
    parameter_name,
)
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.telemetry.redaction import quoted, shortened

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from pallas_gateway.config.model.agents import AgentSettings

type JsonObject = dict[str, Any]

_LONGEST_REASON = 200
"""Characters of why a value cannot be taken; a key of the client's own may stand in it."""
MOST_LEVELS = 100
"""Of objects and lists inside one another; libraries copy and encode a schema by recursion."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by name; None leaves one to the provider.

    `cleared` holds those that the caller set to null, so that no default takes their place. `stop` is a tuple even for
    one text. `extra` holds JSON values; a None in it takes a default's key out. `tools_limit` is the agent's own
    allow-list, which holds besides the caller's: a caller may narrow what an agent can do, never widen it.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    response_format: JsonObject | None = field(default=None, repr=False)
    tool_choice: str | JsonObject | None = None
    tools_allowlist: tuple[str, ...] | None = None
    system_append: str | None = field(default=None, repr=False)
    extra: JsonObject | None = field(default=None, repr=False)
    system_override: str | None = field(default=None, repr=False)
    model: str | None = None
    tools_limit: tuple[str, ...] | None = None
    cleared: frozenset[str] = frozenset()

    def given(self) -> dict[str, Any]:
        """Return the parameters that have a value, by name."""
        return {name: value for name in PARAMETERS if (value := getattr(self, name)) is not None}

    @property
    def tool_lists(self) -> tuple[tuple[str, ...], ...]:
        """The allow-lists of tools, which all apply; without one, every tool is allowed."""
        return tuple(one for one in (self.tools_allowlist, self.tools_limit) if one is not None)


NO_PARAMETERS = Parameters()


class BadParametersError(CallRefusedError):
    """Parameters that cannot be taken: `why`, what may be set with its range, and the one at fault, if it is one."""

    reason = "bad_params"

    def __init__(self, why: str, allowed: Mapping[str, str], parameter: str | None = None) -> None:
        super().__init__(f"{why} {_offer(allowed)}")
        self.parameter = parameter
        self._why, self._allowed = why, allowed

    def renamed(self, names: Mapping[str, str]) -> str:
        """Return the message for an API with names of its own, which lists only parameters of `names`."""
        own = self.parameter or ""
        why = self._why.replace("params.", "", 1).replace(own, names.get(own, own), 1)
        return f"{why} {_offer({names[one]: values for one, values in self._allowed.items() if one in names})}"


def parse(asked: object, settings: AgentSettings) -> Parameters:
    """Return the `params` of a call that the agent allows its callers to set; None and `{}` set none.

    Raises:
        BadParametersError: the message names what is wrong and lists what this agent's callers may set.
    """
    if asked is None:
        return NO_PARAMETERS
    if not isinstance(asked, dict):
        raise _refused("Argument 'params' must be an object.", settings)
    asked = _by_own_names(asked, settings)
    for name in asked:
        if name not in settings.caller_params.allowed:
            raise _refused(_why_not(str(name)), settings, str(name))
    _refuse_unsendable(asked, settings)
    read, errors = validated(CallParameters, asked)
    if read is None:
        raise _refused(_what_is_wrong(errors[0]), settings, str(errors[0]["loc"][0]))
    _refuse_foreign(read, settings)
    cleared = frozenset(name for name, value in asked.items() if value is None)
    if "extra" in cleared:  # what callers may not set, they cannot take out either
        extra = (settings.default_params.extra or {}).keys() & settings.caller_params.extra_keys
        read = read.model_copy(update={"extra": dict.fromkeys(extra) or None})
    return replace(of_settings(read), cleared=cleared - {"extra"})


def resolved(asked: Parameters, defaults: DefaultParameters) -> Parameters:
    """Return `asked` with the agent's defaults, except those that it clears; the keys of `extra` are merged."""
    if not defaults.model_fields_set and asked.extra is None:
        return asked
    default = of_settings(defaults).given()
    missing = {name: value for name, value in default.items() if getattr(asked, name) is None}
    filled = {name: value for name, value in missing.items() if name not in {*asked.cleared, "tools_allowlist"}}
    both = {**default.get("extra", {}), **(asked.extra or {})}
    if asked.extra is not None:
        filled["extra"] = {key: value for key, value in both.items() if value is not None} or None
    return replace(asked, **filled, tools_limit=defaults.tools_allowlist)


def clamped(parameters: Parameters, most: int | None) -> Parameters:
    """Return the parameters with `max_tokens` within the limit of the model, if that is known."""
    if parameters.max_tokens is None or most is None or parameters.max_tokens <= most:
        return parameters
    return replace(parameters, max_tokens=most)


def of_settings(settings: DefaultParameters) -> Parameters:
    """Return validated parameters as a call carries them."""
    values: JsonObject = {name: getattr(settings, name, None) for name in PARAMETERS}
    return Parameters(**values)


def listed_schema(settings: AgentSettings) -> JsonObject | None:
    """The schema of `params` as a tool lists it: the names alone. A listing stands in the context of every model.

    The names are in the description, where `listed_names` finds them: clients warn of `propertyNames`. What the schema
    lets through, `params_schema` and `parse` may still refuse, in a sentence that says what to send.
    """
    if not (names := settings.caller_params.allowed):
        return None
    return {"type": "object", "description": f"How the model answers, as in OpenAI's API: {{{', '.join(names)}}}"}


def listed_names(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of the parameters in a listed schema, also in one of an older gateway."""
    older = (schema.get("propertyNames") or {}).get("enum")
    named = re.search(r"\{([\w, ]+)\}$", str(schema.get("description")))
    return list(map(str, older)) if isinstance(older, list) else named[1].split(", ") if named else []


def params_schema(settings: AgentSettings) -> JsonObject | None:
    """Return the JSON Schema of the `params` that callers of this agent may set; None if they may set none.

    A call may also have null there.
    """
    allowed = settings.caller_params.allowed
    if not allowed:
        return None
    shown = {name: schema for name, schema in deepcopy(schemas_by_name()).items() if name in allowed}
    if "extra" in shown:
        shown["extra"]["anyOf"][0] |= _extra_schema(settings)
    if "model" in shown:
        shown["model"]["anyOf"] = [{"type": "string", "enum": list(settings.models)}, {"type": "null"}]
    return {
        "type": "object",
        "properties": shown,
        "additionalProperties": False,
        "description": "How the model is to answer this one call. null clears a default of the agent.",
    }


def _extra_schema(settings: AgentSettings) -> JsonObject:
    of_the_operator: JsonObject = {key: {} for key in settings.caller_params.extra}
    return {
        "propertyNames": {"enum": sorted(settings.caller_params.extra_keys)},
        "properties": {SEQUENCE_BREAKERS: SEQUENCE_BREAKERS_SCHEMA, **of_the_operator},
        "additionalProperties": SAMPLING_VALUE_SCHEMA,
    }


@cache
def schemas_by_name() -> JsonObject:
    """The JSON Schema of every parameter there is. Made once: it takes pydantic a millisecond or two."""
    whole = CallParameters.model_json_schema()["properties"]
    return {name: _shown(whole[name]) for name in PARAMETERS}


def _shown(schema: JsonObject) -> JsonObject:
    return {key: value for key, value in schema.items() if key not in {"title", "default"}}


def _by_own_names(asked: JsonObject, settings: AgentSettings) -> JsonObject:
    """Return parameters by their own names, without the camelCase ones.

    Raises:
        BadParametersError: both names of one parameter are given.
    """
    named: JsonObject = {}
    for key, value in asked.items():
        name = parameter_name(key)
        if name in named:
            other = key if name != key else next(one for one in asked if one != name and parameter_name(one) == name)
            why = f"Parameters '{name}' and '{other}' are two names of one parameter; send one of them."
            raise _refused(why, settings, name)
        named[name] = value
    return named


def _refused(why: str, settings: AgentSettings, parameter: str | None = None) -> BadParametersError:
    ranges = {**_RANGES, "model": ", ".join(settings.models)}
    return BadParametersError(why, {name: ranges[name] for name in settings.caller_params.allowed}, parameter)


def _offer(allowed: Mapping[str, str]) -> str:
    listed = ", ".join(f"{name} ({values})" for name, values in allowed.items())
    return f"Callers of this agent may set: {listed or 'nothing'}."


def _why_not(name: str) -> str:
    if name in PARAMETERS:
        return f"Parameter '{name}' is not for callers of this agent."
    return f"Unknown parameter {quoted(name)}."


def _what_is_wrong(error: ErrorDetails) -> str:
    name = str(error["loc"][0])
    why = next(located(CallParameters, [error]))[1] if error["type"] == "value_error" else f"must be {_RANGES[name]}"
    return f"params.{name} {shortened(why, _LONGEST_REASON)}."


_RANGES = {
    "temperature": "0 to 2",
    "top_p": "0 to 1",
    "top_k": "a whole number from 1 to 2^63 - 1",
    "max_tokens": "a whole number from 1 to 2^63 - 1",
    "stop": "1 to 4 texts",
    "presence_penalty": "-2 to 2",
    "frequency_penalty": "-2 to 2",
    "seed": "a whole number of 64 bits",
    "response_format": "an object",
    "tool_choice": "auto, none, required or an object",
    "tools_allowlist": f"a list of at most {MOST_ALLOWED_TOOLS} texts",
    "system_append": "a text",
    "extra": "an object",
    "system_override": "a text",
    "model": "a text",
}


def _refuse_unsendable(asked: Mapping[str, Any], settings: AgentSettings) -> None:
    """Refuse values that a provider's client could not encode: not JSON, not UTF-8, or nested too deeply."""
    for name, value in asked.items():
        if _has_more_levels(value, MOST_LEVELS):
            raise _refused(f"params.{name} is nested more than {MOST_LEVELS} levels deep.", settings, name)
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            why = f"params.{name} holds what cannot be sent on: NaN, an infinite number or half a surrogate pair."
            raise _refused(why, settings, name) from None


def _has_more_levels(value: object, most: int) -> bool:
    level: list[object] = [value]
    for _ in range(most):
        level = [inner for one in level for inner in _entries(one)]
        if not level:
            return False
    return True


def _entries(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_foreign(read: CallParameters, settings: AgentSettings) -> None:
    if read.model is not None and read.model not in settings.models:
        raise _refused("params.model is none that this agent's callers may choose.", settings, "model")
    for key, value in (read.extra or {}).items():
        if (why := _why_not_in_extra(key, value, settings)) is not None:
            raise _refused(why, settings, "extra")


def _why_not_in_extra(key: str, value: object, settings: AgentSettings) -> str | None:
    keys = settings.caller_params.extra_keys
    if key not in keys:
        return f"params.extra must not hold {quoted(key)}; it takes {', '.join(sorted(keys))}."
    if key in settings.caller_params.extra or is_sampling_value(key, value):
        return None
    wanted = f"a number, true, false or a text of at most {LONGEST_SAMPLING_TEXT} characters"
    lists = f", or a list of at most {MOST_SEQUENCE_BREAKERS} such texts" if key == SEQUENCE_BREAKERS else ""
    return f"params.extra.{key} must be {wanted}{lists}."
