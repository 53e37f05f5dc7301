"""A file is the image that its first bytes say."""

import base64
import binascii
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_gateway.calls.image_bytes import BASE64_PATTERNS, image_type_of, is_base64, why_not

FILES = {
    "image/png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "image/jpeg": b"\xff\xd8\xff\xe0\0\x10JFIF",
    "image/gif": b"GIF89a\x01\0\x01\0",
    "image/webp": b"RIFF\x24\n\0\0WEBPVP8 ",
    "image/heic": b"\0\0\0\x18ftypheic",
    "image/tiff": b"II*\0\x08\0\0\0",
    "image/bmp": b"BM\x46\0\0\0\0\0\0\0",
    "application/pdf": b"%PDF-1.7\n",
}
NO_IMAGES = (
    b" %PDF-1.7",
    b"hello",
    b"PK\x03\x04",
    b"\x89PNG",
    b"RIFF\x24\n\0\0WAVEfmt ",
    b"\0",
    b"GIF88a",
    b"BMW is no bitmap",
)


@pytest.mark.parametrize("kind", FILES)
def test_an_image_is_of_the_type_that_its_bytes_say_and_of_no_other(kind: str) -> None:
    assert image_type_of(FILES[kind]) == kind
    assert why_not(kind, FILES[kind]) is None
    for other in [one for one in (*FILES, "image/x-own") if one != kind]:
        assert why_not(other, FILES[kind]) == f"is of type {kind}, not {other}"


@pytest.mark.parametrize("data", NO_IMAGES)
@pytest.mark.parametrize("kind", FILES)
def test_what_is_no_image_is_said_to_be_none(kind: str, data: bytes) -> None:
    assert why_not(kind, data) == f"is no {kind} file, by its first bytes"


def test_of_an_unknown_type_nothing_is_known() -> None:
    assert why_not("image/x-own", b"anything") is None


@given(st.sampled_from(sorted(BASE64_PATTERNS)), st.binary())
def test_an_image_in_base64_is_known_by_its_pattern(kind: str, rest: bytes) -> None:
    for data in (FILES[kind], FILES[kind][:12] + rest, rest):
        matches = re.search(BASE64_PATTERNS[kind], base64.b64encode(data).decode()) is not None
        assert matches == (image_type_of(data) == kind)


@settings(max_examples=30)
@given(st.data())
def test_what_matches_the_pattern_of_a_type_is_an_image_of_it(data: st.DataObject) -> None:
    for kind, pattern in BASE64_PATTERNS.items():
        text = data.draw(st.from_regex(pattern, alphabet=st.characters(codec="ascii")))
        assert image_type_of(base64.b64decode(text.rstrip("\n"), validate=True)) == kind


@given(st.text(st.sampled_from("Az09+/=-_ \nä"), min_size=1, max_size=12))
def test_base64_is_what_can_be_decoded(text: str) -> None:
    try:
        can_be_decoded = bool(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        can_be_decoded = False
    assert is_base64(text) is can_be_decoded


@pytest.mark.parametrize("length", [64 * 1024 + 4, 64 * 1024 + 8, 3 * 64 * 1024])
@pytest.mark.parametrize("wrong", "=-_ é")
def test_a_wrong_character_is_found_wherever_it_is(length: int, wrong: str) -> None:
    text = "Az09" * (length // 4)
    assert is_base64(text)
    assert is_base64(f"{text[:-4]}AB==")
    for at in (0, 1, 64 * 1024 - 1, 64 * 1024, length - 5, length - 4):
        assert not is_base64(text[:at] + wrong + text[at + 1 :])
