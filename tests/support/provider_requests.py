"""Requests to model providers against the types of the providers' own packages, closed: unknown members are faults.

All requests to `ScriptedLlm`, `ScriptedProvider` and `PolyglotLlm` pass `to_provider`. They are checked when the test
has ended, because making a schema takes up to two seconds, in which no gateway of this process could answer. A test in
which one does not fit fails, as by `protocol_messages`. Members and values that servers want although the packages do
not name them stand in `DEVIATIONS` and `OPTIONAL`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import jsonschema_rs
from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model

from pallas_gateway.config.model.parameters import SAMPLING_KEYS
from tests.support.protocol_messages import MISFITS
from tests.support.providers.tool_rounds import faults_of

type Json = dict[str, Any]
type Misfits = Callable[[Json], list[str]]

_EXTRA: Json = {key: {} for key in SAMPLING_KEYS}
"""What callers name in `params.extra` is sent to every provider as it is."""
_ANY_PENALTY: Json = {"frequency_penalty": {"type": "number"}, "presence_penalty": {"type": "number"}}
DEVIATIONS: dict[str, Json] = {
    "CompletionCreateParams": {
        **_EXTRA,
        "top_k": {"type": "integer"},  # most servers but OpenAI's own
        "reasoning_effort": {"const": "default"},  # Groq's word for Qwen
        "reasoning_format": {"type": "string"},  # Groq
        "thinking": {"type": "object"},  # Z.AI, DeepSeek
        "tool_stream": {"type": "boolean"},  # Z.AI
    },
    # DeepSeek, Moonshot and Z.AI want it back.
    "ChatCompletionAssistantMessageParam": {"reasoning_content": {"type": "string"}},
    "ResponseCreateParams": {**_EXTRA, **_ANY_PENALTY, "top_k": {"type": "integer"}},  # servers with this API
    "ResponseCreate": _EXTRA,
    "MessageCreateParams": {
        **_EXTRA,
        # The package has dropped them, earlier models take them.
        "temperature": {"type": "number"},
        "top_p": {"type": "number"},
        "top_k": {"type": "integer"},
    },
}
"""By the definition in a provider's schema: members and values that it lacks."""
OPTIONAL: dict[str, set[str]] = {
    "ResponseInputImageParam": {"detail"},  # documented with the default `auto`
    # Earlier answers are sent as messages of the assistant; only those that were stored at OpenAI have these.
    "ResponseOutputMessageParam": {"id", "status"},
    "ResponseOutputTextParam": {"annotations"},
    "ResponseReasoningItemParam": {"id"},  # xAI gives the same one to several
}
"""By the definition: members that the types require and the API does not."""
_IN_HEADERS = {"betas", "user_profile_id", "workspace_id"}
"""Parameters of Anthropic's package that are no members of the body."""


def to_provider(path: str, body: Json) -> None:
    """Have the body of a request for one LLM turn checked at the end of the test."""
    MISFITS.check_at_the_end(f"to the provider at {path}", partial(misfits_of_request, path, body))


def misfits_of_request(path: str, body: Json) -> list[str]:
    """Return what of a request does not fit the API whose paths end like this one."""
    kind = path.rpartition("/")[2].rpartition(":")[2]
    return _APIS[kind](body) or faults_of(kind, body)


def _of_chat(body: Json) -> list[str]:
    return _misfits(_chat(), body)


def _of_responses(body: Json) -> list[str]:
    if "deepseek" in str(body.get("model")):
        body = {**body, "input": [*map(_with_summary, body["input"])]}
    return _misfits(_response_create() if "type" in body else _responses(), body)


def _with_summary(item: Json) -> Json:
    """DeepSeek makes no summaries of its reasoning, and gets none back."""
    return {"summary": [], **item} if item.get("type") == "reasoning" else item


def _of_messages(body: Json) -> list[str]:
    return _misfits(_messages(), body)


def _of_vertex(body: Json) -> list[str]:
    """Vertex AI has the model in the path and the version, a header elsewhere, in the body."""
    if "model" in body or body.get("anthropic_version") != "vertex-2023-10-16":
        return ["Vertex AI takes `anthropic_version` and no `model`"]
    rest = {name: value for name, value in body.items() if name != "anthropic_version"}
    return _of_messages({"model": "in-the-path", **rest})


def _of_gemini(body: Json) -> list[str]:
    try:
        _generate_content().validate_json(json.dumps(body), strict=True)
    except ValidationError as error:
        return [f"{_path(one['loc'])}: {one['msg']}: {one['input']!r:.200}" for one in error.errors()]
    return []


def _of_bedrock(body: Json) -> list[str]:
    from botocore.validate import ParamValidator  # noqa: PLC0415

    report = ParamValidator().validate({"modelId": "in-the-path", **body}, _converse())
    return [report.generate_report()] if report.has_errors() else []


_APIS: dict[str, Misfits] = {
    "completions": _of_chat,
    "responses": _of_responses,
    "messages": _of_messages,
    "rawPredict": _of_vertex,
    "streamRawPredict": _of_vertex,
    "generateContent": _of_gemini,
    "streamGenerateContent": _of_gemini,
    "converse": _of_bedrock,
    "converse-stream": _of_bedrock,
}


@cache
def _chat() -> Any:
    from openai.types.chat.completion_create_params import CompletionCreateParams  # noqa: PLC0415  seconds to import

    return _validator(CompletionCreateParams)


@cache
def _responses() -> Any:
    from openai.types.responses.response_create_params import ResponseCreateParams  # noqa: PLC0415

    return _validator(ResponseCreateParams)


@cache
def _response_create() -> Any:
    """A message of a WebSocket."""
    from openai.types.responses.responses_client_event_param import ResponseCreate  # noqa: PLC0415

    return _validator(ResponseCreate)


@cache
def _messages() -> Any:
    from anthropic.types.beta.message_create_params import MessageCreateParams  # noqa: PLC0415

    return _validator(MessageCreateParams)


@cache
def _generate_content() -> TypeAdapter[Any]:
    from google.genai import types  # noqa: PLC0415

    members: Json = {
        "contents": (list[types.Content], ...),
        "systemInstruction": (types.Content, None),
        "tools": (list[types.Tool], None),
        "toolConfig": (types.ToolConfig, None),
        "safetySettings": (list[types.SafetySetting], None),
        "generationConfig": (types.GenerationConfig, None),
        "cachedContent": (str, None),
    }
    return TypeAdapter(create_model("GenerateContent", __config__=ConfigDict(extra="forbid"), **members))


@cache
def _converse() -> Any:
    from botocore.loaders import Loader  # noqa: PLC0415
    from botocore.model import ServiceModel  # noqa: PLC0415

    model = ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"))
    return model.operation_model("ConverseStream").input_shape


def _validator(params: Any) -> Any:
    """Use the schema of the types: pydantic itself checks `Iterable` only when it is read."""
    schema = TypeAdapter(params).json_schema()
    for whole_name, definition in {schema.get("title", ""): schema, **schema["$defs"]}.items():
        if "properties" not in definition:
            continue
        name = whole_name.removesuffix("NonStreaming").removesuffix("Streaming")
        known: Json = definition["properties"]
        for member, more in DEVIATIONS.get(name, {}).items():
            known[member] = {"anyOf": [known[member], more]} if member in known else more
        for member in _IN_HEADERS & known.keys():
            del known[member]
        definition["required"] = [one for one in definition.get("required", []) if one not in OPTIONAL.get(name, ())]
        if definition.get("additionalProperties", True) is True:
            definition["additionalProperties"] = False
    return jsonschema_rs.validator_for(schema)


def _misfits(validator: Any, body: Json) -> list[str]:
    if validator.is_valid(body):
        return []
    return list(dict.fromkeys(text for error in validator.iter_errors(body) for text in _explained(error)))


def _explained(error: Any) -> Iterator[str]:
    """Name the faults of the alternative that was meant, rather than that none of a hundred fits."""
    meant = [branch for branch in getattr(error.kind, "context", []) if not _is_of_another_kind(branch, error)]
    if not meant:
        yield f"{_path(error.instance_path)}: {error.message:.300}"
        return
    for one in min(meant, key=len):
        yield from _explained(one)


def _is_of_another_kind(branch: Sequence[Any], whole: Any) -> bool:
    """Return True for an alternative of another JSON type or with another `type`, `role` or `stream`."""
    own, names = list(whole.instance_path), ("type", "role", "stream")
    return any(
        (one.kind.name == "type" and list(one.instance_path) == own)
        or list(one.instance_path) in [[*own, name] for name in names]
        for one in branch
    )


def _path(parts: Sequence[Any]) -> str:
    return ".".join(str(part) for part in parts) or "the body"
