"""The parameters of a call: their ranges and meanings, for `default_params` and for calls.

The docstring under each field is its meaning in `docs/operate/configuration.md` and in the schema of the message tool.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, get_args, override

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasGenerator,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    Strict,
    StringConstraints,
    TypeAdapter,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from pallas_gateway.config.model.section import Section
from pallas_gateway.config.model.values import Count, Text

type ParameterObject = dict[str, Any]

ParameterName = Literal[
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "response_format",
    "tool_choice",
    "tools_allowlist",
    "system_append",
    "extra",
    "system_override",
    "model",
]
PARAMETERS: tuple[ParameterName, ...] = get_args(ParameterName)
CALLER_PARAMETERS = PARAMETERS[:-2]
"""Parameters that callers may set by default: not the model and not another system prompt."""
OTHER_NAMES: Mapping[str, ParameterName] = {camel: name for name in PARAMETERS if (camel := to_camel(name)) != name}
"""Parameters by their camelCase names, which are accepted wherever parameters are given."""
SAMPLING_KEYS = frozenset({
    "min_p", "top_a", "typical_p", "tfs_z", "epsilon_cutoff", "eta_cutoff", "dynatemp_range", "dynatemp_exponent",
    "repetition_penalty", "repeat_penalty", "repeat_last_n", "no_repeat_ngram_size", "length_penalty", "min_tokens",
    "mirostat", "mirostat_mode", "mirostat_tau", "mirostat_eta", "xtc_probability", "xtc_threshold",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
})  # fmt: skip
"""Keys of `extra` that every caller may set: sampling parameters, as inference servers name them.

An allow-list, because providers add keys that search the web, or choose another model or account.
"""
SEQUENCE_BREAKERS = "dry_sequence_breakers"
LONGEST_SAMPLING_TEXT = 100
MOST_SEQUENCE_BREAKERS = 100
_SET_OTHERWISE = frozenset({
    "models", "messages", "input", "system", "instructions", "prompt",
    "tools", "functions", "function_call", "mcp_servers", "container",
    "max_completion_tokens", "max_output_tokens", "stop_sequences", "text", "output_config",
    "output_format", "stream", "stream_options", "n", "background", "store", "conversation", "previous_response_id",
    "api_key", "api_base", "base_url", "extra_headers", "extra_body",
})  # fmt: skip
"""Keys that no configuration can allow: the gateway sets them, or they choose the server or the account."""

TOOL_CHOICES = ("auto", "none", "required")
FORMATS = ("text", "json_object", "json_schema")
MOST_STOPS = 4
MOST_ALLOWED_TOOLS = 1000  # each is compared with every tool of the agent
LARGEST_INTEGER = 2**63 - 1
_FORMAT_EXAMPLE = '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}'
_TOOL_EXAMPLE = '{"type": "function", "function": {"name": …}}'
_SCHEMA_KEYS = {"name", "description", "schema", "strict"}
_SCHEMA_NAME = "[a-zA-Z0-9_-]{1,64}"  # OpenAI's, which others have adopted


def parameter_name(name: str) -> str:
    """Return a parameter's own name for its camelCase name; other texts unchanged."""
    return OTHER_NAMES.get(name, name)


def _parameter_name(value: object) -> object:
    return parameter_name(value) if isinstance(value, str) else value


def _names(name: str) -> AliasChoices:
    return AliasChoices(name, to_camel(name))


def _stops(value: object) -> object:
    return (value,) if isinstance(value, str) else _short(value, MOST_STOPS, f"1 to {MOST_STOPS} texts")


def _allowed_tools(value: object) -> object:
    return _short(value, MOST_ALLOWED_TOOLS, f"a list of at most {MOST_ALLOWED_TOOLS} texts")


def _short(value: object, most: int, wanted: str) -> object:
    """Refuse a long list before pydantic makes an error of each of its entries."""
    if isinstance(value, (list, tuple)) and len(value) > most:
        raise ValueError(f"must be {wanted}")
    return value


def _response_format(value: ParameterObject) -> ParameterObject:
    kind, given = value.get("type"), value.get("json_schema", {})
    if kind not in FORMATS:
        raise ValueError(f"must have a type: {', '.join(FORMATS)}")
    if not isinstance(given, Mapping) or (kind == "json_schema" and not isinstance(given.get("schema"), dict)):
        raise ValueError(f"must be like {_FORMAT_EXAMPLE}")
    unknown = sorted((value.keys() - {"type", "json_schema"}) | (given.keys() - _SCHEMA_KEYS), key=str)
    if unknown:
        raise ValueError(f"must not hold '{unknown[0]}'")
    _refuse_odd_schema(given)
    return value


def _refuse_odd_schema(given: Mapping[str, Any]) -> None:
    """Refuse what providers refuse without naming the place."""
    name = given.get("name", "any")
    if not (isinstance(name, str) and re.fullmatch(_SCHEMA_NAME, name)):
        raise ValueError("must have a name of 1 to 64 letters (a to z), digits, _ or -")
    if not isinstance(given.get("description", ""), str):
        raise ValueError("must have a text as description")
    if not isinstance(given.get("strict"), bool | None):
        raise ValueError("must have true or false as strict")


def _tool_choice(value: object) -> object:
    match value:
        case str() if value in TOOL_CHOICES:
            return str(value)
        case {"type": "function", "function": {"name": str(name)}} if name:
            return value
    raise ValueError(f"must be {', '.join(TOOL_CHOICES)} or {_TOOL_EXAMPLE}")


_TOOL_CHOICE_SCHEMA: ParameterObject = {
    "anyOf": [
        {"type": "string", "enum": list(TOOL_CHOICES)},
        {
            "type": "object",
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "properties": {"name": {"type": "string", "minLength": 1}},
                    "required": ["name"],
                },
            },
            "required": ["type", "function"],
        },
    ]
}
_STOPS_SCHEMA: ParameterObject = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": MOST_STOPS},
    ]
}
_RESPONSE_FORMAT_SCHEMA: ParameterObject = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": list(FORMATS)},
        "json_schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": f"^{_SCHEMA_NAME}$"},
                "description": {"type": "string"},
                "schema": {"type": "object"},
                "strict": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            },
            "required": ["schema"],
            "additionalProperties": False,
        },
    },
    "required": ["type"],
    "additionalProperties": False,
}

Temperature = Annotated[float, Strict(), Field(ge=0, le=2, allow_inf_nan=False)]
Share = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]
Penalty = Annotated[float, Strict(), Field(ge=-2, le=2, allow_inf_nan=False)]
Integer = Annotated[int, Strict(), Field(ge=-LARGEST_INTEGER - 1, le=LARGEST_INTEGER)]
Tokens = Annotated[Count, Field(le=LARGEST_INTEGER)]
Words = Annotated[str, Strict(), StringConstraints(min_length=1)]
Stops = Annotated[
    tuple[Words, ...],
    BeforeValidator(_stops),
    Field(min_length=1, max_length=MOST_STOPS),
    WithJsonSchema(_STOPS_SCHEMA),
]
AllowedTools = Annotated[
    tuple[Text, ...], BeforeValidator(_allowed_tools), Field(json_schema_extra={"maxItems": MOST_ALLOWED_TOOLS})
]
ResponseFormat = Annotated[ParameterObject, AfterValidator(_response_format), WithJsonSchema(_RESPONSE_FORMAT_SCHEMA)]
ToolChoice = Annotated[str | ParameterObject, BeforeValidator(_tool_choice), WithJsonSchema(_TOOL_CHOICE_SCHEMA)]


def is_sampling_value(key: str, value: object) -> bool:
    """Return True if callers may give this value to one of `SAMPLING_KEYS`; null removes a default."""
    if key == SEQUENCE_BREAKERS and isinstance(value, list):
        return len(value) <= MOST_SEQUENCE_BREAKERS and all(_is_short_text(one) for one in value)
    if isinstance(value, (int, float)):
        return abs(value) <= LARGEST_INTEGER
    return value is None or _is_short_text(value)


def _is_short_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_SAMPLING_TEXT


_SHORT_TEXT: ParameterObject = {"type": "string", "maxLength": LONGEST_SAMPLING_TEXT}
SAMPLING_VALUE_SCHEMA: ParameterObject = {
    "anyOf": [
        {"type": "number", "minimum": -LARGEST_INTEGER, "maximum": LARGEST_INTEGER},
        {"type": "boolean"},
        _SHORT_TEXT,
        {"type": "null"},
    ]
}
SEQUENCE_BREAKERS_SCHEMA: ParameterObject = {
    "anyOf": [SAMPLING_VALUE_SCHEMA, {"type": "array", "items": _SHORT_TEXT, "maxItems": MOST_SEQUENCE_BREAKERS}]
}


def _extra_key(value: str) -> str:
    if value.casefold() in _SET_OTHERWISE.union(PARAMETERS):
        raise ValueError(f"'{value}' is set by the gateway or by a parameter of its own; callers cannot have it here")
    return value


CallerParameterName = Annotated[
    ParameterName,
    BeforeValidator(_parameter_name),
    WithJsonSchema({"type": "string", "enum": [*PARAMETERS, *OTHER_NAMES]}),
]


class CallerParameters(Section):
    """Parameters that callers may set in `params`."""

    names: tuple[CallerParameterName, ...] = CALLER_PARAMETERS
    """The parameters; `[]` for none."""

    extra: tuple[Annotated[Text, AfterValidator(_extra_key)], ...] = ()
    """Keys of `extra` in addition to sampling parameters, as the provider names them."""

    @cached_property
    def allowed(self) -> tuple[ParameterName, ...]:
        """The parameters by name, in their own order."""
        return tuple(name for name in PARAMETERS if name in self.names or (name == "extra" and self.extra))

    @property
    def extra_keys(self) -> frozenset[str]:
        """Every key that callers may set in `extra`."""
        return SAMPLING_KEYS.union(self.extra)


_NAMES: TypeAdapter[tuple[ParameterName, ...]] = TypeAdapter(tuple[CallerParameterName, ...])


def _caller_params(value: object, validate: ModelWrapValidatorHandler[CallerParameters]) -> CallerParameters:
    """Accept a list as short for `names`."""
    if isinstance(value, (list, tuple)):
        return CallerParameters(names=_NAMES.validate_python(tuple(value)))
    return validate(value)


CallerParams = Annotated[
    CallerParameters,
    WrapValidator(_caller_params, json_schema_input_type=tuple[CallerParameterName, ...] | CallerParameters),
]


class DefaultParameters(Section):
    """Parameters of a call; the provider's defaults apply to others."""

    # With both names of a parameter, pydantic uses the first and reports the second as an unknown key.
    model_config = ConfigDict(alias_generator=AliasGenerator(validation_alias=_names), populate_by_name=True)

    temperature: Temperature | None = None
    """Sampling temperature, 0 to 2."""

    top_p: Share | None = None
    """Nucleus sampling: the share of the most likely tokens, 0 to 1."""

    top_k: Tokens | None = None
    """Number of the most likely tokens that are sampled."""

    max_tokens: Tokens | None = None
    """Longest answer of one LLM turn in tokens, up to the model's limit."""

    stop: Stops | None = None
    """Up to 4 texts at which the model stops writing."""

    presence_penalty: Penalty | None = None
    """-2 to 2: above 0, used tokens become less likely."""

    frequency_penalty: Penalty | None = None
    """-2 to 2: the same, the more often they have occurred."""

    seed: Integer | None = None
    """For repeatable answers, as far as the provider supports them."""

    response_format: ResponseFormat | None = None
    """Format of the answer, as in OpenAI's API: `text`, `json_object` or `json_schema` with a schema."""

    tool_choice: ToolChoice | None = None
    """`auto`, `none`, `required`, or one tool as in OpenAI's API. The last two apply to the first LLM turn only."""

    tools_allowlist: AllowedTools | None = None
    """The only tools that may be used: `{server}/{tool}`, `{server}/*`, or as the model sees them."""

    system_append: Words | None = None
    """Added to the agent's instruction."""

    extra: dict[str, Any] | None = None
    """More keys for the body of the provider's request; null removes a default."""

    system_override: Words | None = None
    """Replaces the agent's instruction."""

    @classmethod
    @override
    def _field(cls, key: str) -> FieldInfo | None:
        return super()._field(parameter_name(key))


class CallParameters(DefaultParameters):
    """What callers may send; the agent's own model is no parameter, so there is no default for it."""

    model: Text | None = None
    """The model that answers instead of the agent's own."""
