"""Values of union types are those that the libraries of OpenAI and Anthropic make."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import anthropic
import openai
import pytest
from anthropic.types.beta import BetaContentBlock, BetaMessage, BetaRawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseOutputItem, ResponseStreamEvent
from pydantic import BaseModel

from pallas_gateway.runtime.fast_paths import union_types as types
from pallas_gateway.runtime.fast_paths.union_types import constructing, members_of
from tests.support.model_values import taken_apart
from tests.support.providers.anthropic import Anthropic
from tests.support.providers.responses import Responses
from tests.support.scripted_llm import CallTools, Say, Usage

TURNS = (
    Say(("Hello", " world"), usage=Usage(10, 4, cached=3, reasoning=1)),
    CallTools((("search", '{"q": 1}'),), text="So", usage=Usage(5, 2)),
)
RESPONSE: Any = SimpleNamespace(number=1, model="m", body={}, path="")


def events_of(dialect: Any) -> list[dict[str, Any]]:
    """The events of whole answers, as they are sent."""
    texts = [dialect.piece("x"), dialect.error("no")]
    for turn in TURNS:
        texts += [dialect.opening(turn, RESPONSE), dialect.ending(turn, RESPONSE)]
    texts.append(dialect.calls(TURNS[1], RESPONSE))
    blocks = b"".join(texts).split(b"\n\n")
    return [json.loads(block.partition(b"data: ")[2]) for block in blocks if block]


LIBRARIES = {
    "openai": (openai, (ResponseStreamEvent, Response, ResponseOutputItem), events_of(Responses())),
    "anthropic": (anthropic, (BetaRawMessageStreamEvent, BetaMessage, BetaContentBlock), events_of(Anthropic())),
}
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.just(1.0), st.sampled_from(["", "a", "5", "text"]))
WRONG = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(st.sampled_from(["type", "a"]), SCALARS))


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """A value with something of it changed, left out or added, at any depth."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        name = draw(st.sampled_from(sorted(value)))
        rest = {key: one for key, one in value.items() if key != name}
        what = draw(st.integers(0, 5))
        if what == 0:
            return rest
        return {**value, "more": draw(WRONG)} if what == 1 else {**rest, name: draw(changed(value[name]))}
    if isinstance(value, list) and value and draw(st.booleans()):
        return [*value[:-1], draw(changed(value[-1]))]
    return draw(WRONG)


def outcome(library: Any, construct: Any, value: Any, type_: Any) -> Any:
    """What a library makes of a value with this function in place of its own, which calls itself by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library._models, "construct_type", construct)
        try:
            return taken_apart(construct(value=value, type_=type_))
        except Exception as error:  # noqa: BLE001  whatever the library raises
            return type(error)


@pytest.mark.parametrize("name", LIBRARIES)
@settings(max_examples=60)
@given(st.data())
def test_a_value_is_what_the_library_makes_of_it(name: str, data: st.DataObject) -> None:
    library, types, events = LIBRARIES[name]
    original = getattr(library._models.construct_type, "original", library._models.construct_type)
    ours = constructing(original, library._models.BaseModel)
    event = data.draw(st.sampled_from(events))
    values = [event, *(one for one in event.values() if isinstance(one, dict))]
    value = data.draw(st.sampled_from(values).flatmap(lambda one: st.one_of(st.just(one), changed(one))))
    type_ = data.draw(st.sampled_from(types))

    assert outcome(library, ours, value, type_) == outcome(library, original, value, type_)


@pytest.mark.parametrize("name", LIBRARIES)
def test_an_event_is_tried_as_the_one_type_that_it_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, (union, *_), events = LIBRARIES[name]
    types.install(name)
    types.install(name)
    construct = library._models.construct_type
    assert construct is library._base_client.construct_type
    assert not hasattr(construct.original, "original")
    tried: list[Any] = []
    monkeypatch.setattr(library._models, "validate_type", lambda **given: tried.append(given))

    made = [construct(value=event, type_=union) for event in events if event["type"] not in ("error", "ping")]

    assert [one.type for one in made] == [event["type"] for event in events if event["type"] not in ("error", "ping")]
    assert tried == []


class One(BaseModel):
    type: Literal["one", "1"]


class Two(BaseModel):
    type: Literal["two"]


class AnyType(BaseModel):
    type: str


class Number(BaseModel):
    type: Literal[2]


class AlsoOne(BaseModel):
    type: Literal["one"]


class Without(BaseModel):
    kind: Literal["three"]


@pytest.mark.parametrize(
    ("type_", "members"),
    [
        (One | Two, {"one": One, "1": One, "two": Two}),
        (Annotated[One | Two, "more"], {"one": One, "1": One, "two": Two}),
        (One, {}),
        (One | None, {}),
        (One | AnyType, {}),
        (One | Number, {}),
        (One | AlsoOne, {}),
        (One | Without, {}),
        (One | list[Two], {}),
        (list[One], {}),
    ],
)
def test_members_are_known_by_tags_that_tell_all_of_them_apart(type_: Any, members: dict[str, Any]) -> None:
    assert members_of(type_) == members


def test_no_more_types_are_known_than_allowed() -> None:
    construct = constructing(lambda **given: given["value"], BaseModel, kept_types=1)

    for type_ in (One | Two, list[int], One | Two):
        assert construct(value={"type": "none of them"}, type_=type_) == {"type": "none of them"}
    assert type(construct(value={"type": "1"}, type_=One | Two)) is One
