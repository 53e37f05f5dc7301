"""What providers refuse of tool calls in a conversation, although each message by itself fits their types.

Each call has one result in the message after it, no result is without its call, and what a model has thought before a
call comes back as it was signed.
"""

from base64 import b64decode, b64encode, urlsafe_b64decode
from collections import Counter
from collections.abc import Iterable
from typing import Any

type Json = dict[str, Any]


def signature_of(thinking: str) -> str:
    """What stands for a model's signature of its thinking, or for the encrypted reasoning."""
    return b64encode(f"signed: {thinking}".encode()).decode()


def faults_of(kind: str, body: Json) -> list[str]:
    """Return what the API of this kind (the end of its path) refuses of the tool rounds of a request."""
    if kind == "completions":
        return _of_chat(body["messages"])
    if kind == "responses":
        return [] if "previous_response_id" in body else _of_responses(body["input"])
    if kind in {"messages", "rawPredict", "streamRawPredict"}:
        return _of_anthropic(body["messages"])
    if kind in {"generateContent", "streamGenerateContent"}:
        return _of_gemini(body["contents"])
    return _of_bedrock(body["messages"]) if kind in {"converse", "converse-stream"} else []


def conversation_of(body: Json) -> list[Json]:
    """The messages of a request, without the marks of what shall be cached."""
    found = next(body[name] for name in ("messages", "input", "contents") if name in body)
    return [_unmarked(one) for one in found if one.get("role") not in {"system", "developer"}]


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmarked(one) for key, one in value.items() if key not in {"cache_control", "cachePoint"}}
    return [_unmarked(one) for one in value] if isinstance(value, list) else value


def _of_chat(messages: list[Json]) -> list[str]:
    rounds: list[tuple[list[str], list[str]]] = []
    open_ = False
    for one in messages:
        if one["role"] == "tool":
            if not open_:
                return [f"the result {one['tool_call_id']} does not follow its call"]
            rounds[-1][1].append(one["tool_call_id"])
            continue
        open_ = bool(one.get("tool_calls"))
        if open_:
            rounds.append(([call["id"] for call in one["tool_calls"]], []))
    return _unpaired(rounds)


def _of_responses(items: list[Json]) -> list[str]:
    called, answered = Counter[str](), Counter[str]()
    ids = Counter(one["id"] for one in items if one.get("id"))
    faults = [f"the id {id_} is there {count} times" for id_, count in ids.items() if count > 1]
    for one, following in zip(items, [*items[1:], {}], strict=True):
        kind = one.get("type", "message")
        if kind == "function_call":
            called[one["call_id"]] += 1
        elif kind == "function_call_output":
            answered[one["call_id"]] += 1
            if not called[one["call_id"]]:
                faults.append(f"the output {one['call_id']} has no call before it")
        elif kind == "reasoning":
            faults += _of_reasoning(one, following)
        elif called != answered:
            faults.append(f"a message comes before the outputs of {sorted(called - answered)}")
    return faults + ([f"{sorted((called - answered).elements())} have no output"] if called != answered else [])


def _of_reasoning(item: Json, following: Json) -> list[str]:
    faults = []
    if following.get("type") != "function_call" and following.get("role") != "assistant":
        faults.append(f"the reasoning {item.get('id')} is without the item that it led to")
    sealed = item.get("encrypted_content")
    if sealed is not None and sealed not in {signature_of(part["text"]) for part in item["summary"]}:
        faults.append("the reasoning is not as it was encrypted")
    return faults


def _of_anthropic(messages: list[Json]) -> list[str]:
    faults: list[str] = []
    for one in messages:
        blocks = one["content"] if isinstance(one["content"], list) else []
        for index, block in enumerate(blocks):
            if block["type"] != "thinking":
                continue
            if index and blocks[index - 1]["type"] != "thinking":
                faults.append("thinking is not at the beginning of its message")
            if block["signature"] != signature_of(block["thinking"]):
                faults.append("thinking is not as it was signed")
        faults += ["a text is empty" for block in blocks if block["type"] == "text" and not block["text"]]
    return faults + _unpaired(_rounds(messages, "tool_use", "id", "tool_result", "tool_use_id"))


def _rounds(
    messages: list[Json], use: str, id_: str, result: str, result_id: str
) -> Iterable[tuple[list[str], list[str]]]:
    for one, following in zip([{"content": []}, *messages], [*messages, {"content": []}], strict=True):
        asked, answered = (
            [block[name] for block in message["content"] if isinstance(block, dict) and block.get("type") == kind]
            for message, kind, name in ((one, use, id_), (following, result, result_id))
        )
        yield asked, answered


def _of_bedrock(messages: list[Json]) -> list[str]:
    plain = [
        {
            "content": [
                {"type": kind, **value} for block in one["content"] for kind, value in block.items() if kind in _TOOLS
            ]
        }
        for one in messages
    ]
    return _unpaired(_rounds(plain, "toolUse", "toolUseId", "toolResult", "toolUseId"))


_TOOLS = ("toolUse", "toolResult")


def _of_gemini(contents: list[Json]) -> list[str]:
    faults: list[str] = []
    for one, following in zip([{"parts": []}, *contents], [*contents, {"parts": []}], strict=True):
        called = [part["functionCall"]["name"] for part in one["parts"] if "functionCall" in part]
        answered = [part["functionResponse"]["name"] for part in following["parts"] if "functionResponse" in part]
        if called != answered:
            faults.append(f"calls of {called} are followed by responses of {answered}")
        signatures = [signature for part in one["parts"] if (signature := part.get("thoughtSignature"))]
        faults += ["a signature is not as it was given" for one in signatures if not _is_signature(one)]
    return faults


def _is_signature(value: str) -> bool:
    return b64decode(urlsafe_b64decode(value)).startswith(b"signed: ")


def _unpaired(rounds: Iterable[tuple[list[str], list[str]]]) -> list[str]:
    return [
        f"the calls {asked} are followed by the results {answered}"
        for asked, answered in rounds
        if sorted(asked) != sorted(answered)
    ]
