"""Events joined as they are read: a library makes of them what it makes of each by itself."""

import gzip
import itertools
import json
from typing import Any

import httpx2
import pytest
from anthropic._streaming import SSEDecoder
from fast_agent.llm.provider_types import Provider
from hypothesis import given
from hypothesis import strategies as st

from pallas_gateway.changes.registry import registry
from pallas_gateway.fast_paths.delta_events import DeltaEvents
from tests.support.loaded_providers import http_of, make_client

AT = {"item_id": "msg_1-a", "output_index": 0, "content_index": 0}


def event(name: str, data: dict[str, Any], *, is_ascii: bool = True, spaces: int = 0) -> bytes:
    written = json.dumps(data, ensure_ascii=is_ascii)[:-1] + " " * spaces + "}"
    return f"event: {name}\ndata: {written}\n\n".encode("utf-8", "surrogatepass")


def delta(text: str, kind: str = "text_delta", *, index: int = 0, spaces: int = 0, is_ascii: bool = True) -> bytes:
    """A piece of text from Anthropic."""
    content = {"type": kind, kind.removesuffix("_delta"): text}
    data = {"type": "content_block_delta", "index": index, "delta": content}
    return event("content_block_delta", data, is_ascii=is_ascii, spaces=spaces)


def piece(text: str, number: int = 1, **more: Any) -> bytes:
    """A piece of text from the Responses API."""
    name = more.pop("type", "response.output_text.delta")
    return event(name, {"type": name, "sequence_number": number, **AT, "delta": text, "logprobs": [], **more})


def pieces_of(data: bytes) -> list[tuple[str | None, str]]:
    """Name and JSON of all events, as a library reads them, with the texts of those that continue each other as one."""
    events = [(one.event, one.data) for one in SSEDecoder().iter_bytes(iter([data]))]
    runs = itertools.groupby(events, lambda one: (one[0], _without_text(one[1])))
    return [(name, f"{rest} {''.join(_text_of(data) for _, data in run)}") for (name, rest), run in runs]


def _without_text(data: str) -> str:
    value = json.loads(data)
    if value.get("type") == "content_block_delta":
        value["delta"] = {**value["delta"], "text": "", "thinking": ""}
    if value.get("type") == "response.output_text.delta":
        value |= {"delta": "", "sequence_number": 0, "obfuscation": ""}
    return json.dumps(value)


def _text_of(data: str) -> str:
    value = json.loads(data)
    text = value.get("delta", "")
    return text if isinstance(text, str) else text.get("text", "") + text.get("thinking", "")


TEXTS = st.one_of(st.sampled_from(["", " ", "\n\n", '"', "\\", "é", "😀", '"delta": "']), st.text(max_size=4))
OF_ANTHROPIC = st.one_of(
    st.builds(delta, TEXTS, spaces=st.integers(0, 2), is_ascii=st.booleans()),
    st.builds(delta, TEXTS, st.just("thinking_delta"), index=st.integers(0, 1)),
    st.sampled_from(
        [
            event("ping", {"type": "ping"}),
            event("content_block_start", {"type": "content_block_start", "content_block": {"text": "text_delta"}}),
            event("content_block_delta", {"type": "content_block_delta", "delta": {"type": "citations_delta"}}),
            delta("x").replace(b"event: content_block_delta", b"event: ping"),
            delta("x").replace(b'"text": "x"', b'"text": "x", "text": "y"'),
            delta("x").replace(b"event: content_block_delta\n", b""),
            delta("x").replace(b"data:", b"data:\ndata:"),
            b": a comment\n\n",
        ]
    ),
)
OF_RESPONSES = st.one_of(
    st.builds(piece, TEXTS, st.integers(0, 3), obfuscation=st.sampled_from(["", "aB3"])),
    st.builds(piece, TEXTS, st.integers(0, 3)),
    st.sampled_from(
        [
            piece("x", content_index=1),
            piece("x", item_id="msg_2"),
            piece("x", logprobs=[{"token": "x"}]),
            piece("x", type="response.refusal.delta"),
            piece("x", more=1),
            piece("x").replace(b'"delta": "x"', b'"delta": "x", "delta": "y"'),
            event("response.output_text.done", {"type": "response.output_text.done", "text": "x"}),
        ]
    ),
)
STREAMS = st.one_of(st.lists(OF_ANTHROPIC, max_size=12), st.lists(OF_RESPONSES, max_size=12))


def joined(*reads: bytes) -> bytes:
    events = DeltaEvents()
    return b"".join(map(events.joined, reads))


@given(STREAMS, st.lists(st.integers(0, 2000), max_size=4))
def test_a_library_reads_the_same_from_any_stream_in_any_reads(stream: list[bytes], cuts: list[int]) -> None:
    data = b"".join(stream)
    ends = sorted(min(cut, len(data)) for cut in cuts)
    reads = [data[begin:end] for begin, end in itertools.pairwise([0, *ends, len(data)])]

    assert pieces_of(joined(*reads)) == pieces_of(data)


@pytest.mark.parametrize("kind", ["text_delta", "thinking_delta"])
def test_anthropics_pieces_of_one_text_become_one(kind: str) -> None:
    begin, end = event("ping", {"type": "ping"}), event("message_stop", {"type": "message_stop"})
    pieces = [delta("It ", kind), delta('is\\ "', kind, spaces=3), delta("good", kind, spaces=1)]

    assert joined(b"".join((begin, *pieces, end))) == begin + delta('It is\\ "good', kind) + end


def test_pieces_of_the_responses_api_become_one_with_the_number_of_the_first() -> None:
    pieces = [piece("It ", 7, obfuscation="a1"), piece("is ", 8, obfuscation="b22"), piece("good", 9, obfuscation="")]

    assert joined(b"".join(pieces)) == piece("It is good", 7, obfuscation="a1")


def test_events_of_another_read_stay() -> None:
    first, second = delta("a") + delta("b"), delta("c") + delta("d")

    assert joined(first[:-20], first[-20:] + second) == first + delta("cd")
    assert joined(first, second) == delta("ab") + delta("cd")


def test_a_block_that_begins_in_another_read_is_no_event_by_itself() -> None:
    """Its name is gone by then, and the next event, which has none, is not of the same kind."""
    unnamed = delta("x").partition(b"\n")[2]
    data = b"event: other\n" + unnamed + unnamed

    assert joined(b"event: other\n", unnamed + unnamed) == data


STAY = {
    "two blocks": delta("a") + delta("b", index=1) + delta("c", "thinking_delta", index=1),
    "two items": piece("a", 1) + piece("b", 2, item_id="msg_2") + piece("c", 3, content_index=1),
    "no unicode": delta("a") + delta("b").replace(b'"b"', b'"\xff"'),
    "half a letter": delta("x").replace(b'"x"', b'"\xc3"') + delta("x").replace(b'"x"', b'"\xa9"'),
    "half pairs of surrogates": delta("\ud83d") + delta("\ude00"),
    **{
        f"a number of {len(number)} digits": piece("a") + piece("b").replace(b'_number": 1', b'_number": ' + number)
        for number in (b"01", b"9" * 4301)  # JSON and Python refuse them
    },
}


@pytest.mark.parametrize("data", STAY.values(), ids=STAY)
def test_what_is_not_one_text_or_refused_by_libraries_stays(data: bytes) -> None:
    assert joined(data) == data


@pytest.mark.parametrize("provider", [Provider.RESPONSES, Provider.ANTHROPIC, Provider.AZURE])
async def test_each_client_joins_the_events_that_it_receives(provider: Provider) -> None:
    client = make_client(provider)
    text = piece if provider is not Provider.ANTHROPIC else delta
    response = httpx2.Response(
        200,
        headers={"Content-Type": "text/event-stream", "Content-Encoding": "gzip"},
        stream=httpx2.ByteStream(gzip.compress(text("a") + text("b"), 0)),
        request=httpx2.Request("POST", "http://llm.invalid"),
    )

    for hook in http_of(client).event_hooks["response"]:
        await hook(response)

    assert await response.aread() == text("ab")
    await registry().close()
