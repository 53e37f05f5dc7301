"""From what a client sent to messages: whatever it was, the well-formed rest survives, in order."""

import base64
import json
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pallas_gateway.calls.call import Image, Message
from pallas_gateway.calls.conversation import (
    MOST_SKIPPED_SHOWN,
    Skipped,
    current_message,
    first_foreign_image,
    history_rows,
    is_text,
    parse_history,
    refuse_too_many,
    without_foreign_images,
)
from pallas_gateway.errors import CallRefusedError
from pallas_gateway.tasks import at_once

DATA = {
    "image/png": "iVBORw0KGgo=",
    "image/jpeg": base64.b64encode(b"\xff\xd8\xff\xe0").decode(),
    "image/heic": base64.b64encode(b"\0\0\0\x18ftypmif1").decode(),
    "image/svg+xml": base64.b64encode(b"<svg/>").decode(),
    "application/pdf": base64.b64encode(b"%PDF-1.7").decode(),
}
PNG = {"data": DATA["image/png"], "mime_type": "image/png"}
IMAGE, GIF = Image(DATA["image/png"], "image/png"), Image("R0lGODlh", "image/gif")
texts = st.text(st.characters())  # halves of surrogate pairs too, which JSON can spell
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
images = st.fixed_dictionaries(
    {
        "data": st.binary().map(lambda data: base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()),
        "mime_type": st.just("image/png"),
    }
)
good_rows = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": st.text()},
    optional={"images": st.none() | st.lists(images, max_size=2)},
)
# Rows that are nearly right find more than arbitrary JSON would.
near_rows = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "User", ""]) | json_values,
        "content": texts | json_values,
        "images": json_values
        | st.lists(json_values | images | st.fixed_dictionaries({"data": json_values}), max_size=3),
        "extra": json_values,
    },
)
rows = json_values | good_rows | near_rows


def is_taken(mime_type: str) -> bool:
    return mime_type.startswith("image/") or mime_type == "application/pdf"


def well_formed(message: Message) -> bool:
    role, text = cast("object", message.role), cast("object", message.text)  # what they are declared to be is in doubt
    return (
        role in {"user", "assistant"}
        and isinstance(text, str)
        and is_text(text)
        and all(is_taken(image.mime_type) and base64.b64decode(image.data) for image in message.images)
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"role": "user", "content": "hi"}, Message("user", "hi")),
        ({"role": "assistant", "content": ""}, Message("assistant", "")),
        ({"role": "user", "content": "hi", "images": None}, Message("user", "hi")),
        ({"role": "user", "content": "hi", "images": []}, Message("user", "hi")),
        ({"role": "user", "content": "see", "images": [PNG, PNG]}, Message("user", "see", (IMAGE, IMAGE))),
        ({"role": "user", "content": "hi", "name": "Ann"}, Message("user", "hi")),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            Message("user", "a\nb"),
        ),
    ],
)
def test_a_well_formed_row_becomes_a_message(row: object, message: Message) -> None:
    assert at_once(parse_history([row])) == ((message,), Skipped())


def test_a_history_as_json_text_is_read() -> None:
    rows = [{"role": "user", "content": "hi"}]
    assert history_rows(json.dumps(rows)) == history_rows(rows) == rows
    assert history_rows(None) == history_rows("null") == history_rows("[]") == []


@pytest.mark.parametrize(
    "history", ["", "hi", "{}", "7", "[" * 100_000, "[" + "1," * 600_000 + "1]", 7, {"a": 1}, True]
)
def test_a_history_that_is_no_list_is_refused(history: object) -> None:
    with pytest.raises(
        CallRefusedError, match=r"must be a list of \{role, content\}, got (str|int|dict|bool)"
    ) as refused:
        history_rows(history)
    assert refused.value.reason == "bad_input"


@settings(max_examples=50)
@given(st.lists(rows))
@example([{"role": "user", "content": "x", "images": [{"data": "\ud800", "mime_type": "image/png"}]}])
@example([{"role": float("nan"), "content": "x"}])
def test_no_row_of_a_history_raises_or_yields_a_malformed_message(history: list[object]) -> None:
    messages, skipped = at_once(parse_history(history))

    assert all(well_formed(message) for message in messages)
    assert len(messages) + skipped.count == len(history)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), good_rows, json_values)))
def test_what_survives_is_in_the_order_it_was_sent(drawn: list[tuple[bool, dict[str, Any], Any]]) -> None:
    sent = [good if keep else {"role": "nobody", "content": bad} for keep, good, bad in drawn]

    messages, skipped = at_once(parse_history(sent))

    kept = [good for keep, good, _ in drawn if keep]
    assert [(message.role, message.text) for message in messages] == [(row["role"], row["content"]) for row in kept]
    left_out = [index for index, (keep, _, _) in enumerate(drawn) if not keep]
    assert [one.index for one in skipped.first] == left_out[:MOST_SKIPPED_SHOWN]
    assert skipped.count == len(left_out)


def test_as_many_entries_as_allowed_are_taken_and_what_is_no_list_is_not_counted() -> None:
    refuse_too_many([{}] * 10, [{}] * 10, 10)
    refuse_too_many([{"images": [{}] * 9}], [{}], 10)
    refuse_too_many([None, 1, {"images": "x" * 100}], "x" * 100, 10)


def test_of_many_skipped_rows_the_first_are_kept_and_all_are_counted() -> None:
    messages, skipped = at_once(parse_history([{"role": "x" * 1_000_000}] * 1000))

    assert messages == ()
    assert skipped.count == 1000
    assert len(skipped.first) == MOST_SKIPPED_SHOWN
    assert sum(len(one.why) for one in skipped.first) < MOST_SKIPPED_SHOWN * 100


@given(json_values)
def test_any_json_value_as_images_is_taken_or_refused(value: object) -> None:
    try:
        message = at_once(current_message("hi", value))
    except CallRefusedError as error:
        refusal = error
    else:
        assert well_formed(message)
        return
    assert refusal.reason == "bad_image"


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ("image/png", "image/png"),
        ("IMAGE/PNG", "image/png"),
        (" image/png ", "image/png"),
        ("image/jpg", "image/jpeg"),
        ("Image/JPG; quality=1", "image/jpeg"),
        ("image/heif", "image/heic"),
        ("image/svg+xml", "image/svg+xml"),
        ("application/x-pdf", "application/pdf"),
        ("Application/PDF; charset=binary", "application/pdf"),
    ],
)
def test_an_images_type_is_taken_under_its_canonical_name(sent: str, taken: str) -> None:
    data = DATA[taken]
    assert at_once(current_message("see", [{"data": data, "mime_type": sent}])).images == (Image(data, taken),)


@pytest.mark.parametrize("sent", ["png", ";image/png", "text/html; image/png", " "])
def test_a_type_that_is_no_images_is_refused(sent: str) -> None:
    with pytest.raises(CallRefusedError, match="which is not an image type"):
        at_once(current_message("see", [{**PNG, "mime_type": sent}]))


def test_images_left_out_are_counted_and_an_empty_turn_keeps_its_place() -> None:
    history = [Message("user", "see", (IMAGE, IMAGE)), Message("assistant", "ok"), Message("user", "", (IMAGE,))]

    bare, dropped = without_foreign_images(history, ())

    assert bare == (Message("user", "see"), Message("assistant", "ok"), Message("user", "[image left out]"))
    assert dropped == 3


def test_only_images_of_foreign_types_are_left_out() -> None:
    history = [Message("user", "", (IMAGE, GIF, IMAGE)), Message("user", "", (GIF,)), Message("user", "")]

    bare, dropped = without_foreign_images(history, {"image/png"})

    assert bare == (Message("user", "", (IMAGE, IMAGE)), Message("user", "[image left out]"), Message("user", ""))
    assert dropped == 2


@pytest.mark.parametrize(
    ("images", "found"),
    [((), None), ((IMAGE, IMAGE), None), ((IMAGE, GIF, GIF), (2, GIF)), ((GIF, IMAGE), (1, GIF))],
)
def test_the_first_image_of_a_foreign_type_is_found(images: tuple[Image, ...], found: tuple[int, Image] | None) -> None:
    assert first_foreign_image(Message("user", "see", images), {"image/png"}) == found
