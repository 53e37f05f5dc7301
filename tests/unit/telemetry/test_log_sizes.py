"""How much of a text, a field and a traceback a log record holds."""

import json

import pytest

from pallas_gateway.telemetry import log_sizes, redaction
from pallas_gateway.telemetry.log_sizes import fitted, fitted_field, fitted_traceback
from pallas_gateway.telemetry.redaction import KnownSecrets

HOSTILE = ("x", "\0", "\u00e9", "\U0001f600", "\ud800", "\\", '"', "\n", "sk-12345678 ")


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> KnownSecrets:
    known = KnownSecrets()
    known.add(["canary-of-the-file"])
    monkeypatch.setattr(redaction, "configured", known)
    return known


@pytest.mark.parametrize("part", HOSTILE)
def test_a_text_is_cut_by_the_length_of_its_json(part: str) -> None:
    short = fitted(part * 1_000_000)
    assert 1_000 < len(json.dumps(short)) <= log_sizes.LONGEST_TEXT or part.startswith("sk-")
    assert len(json.dumps(short)) <= log_sizes.LONGEST_TEXT
    assert short.endswith("…")


def test_a_text_of_ordinary_length_stays_as_it_is() -> None:
    assert fitted("one line") == "one line"
    assert fitted("é" * 200) == "é" * 200


@pytest.mark.parametrize(
    "value",
    [
        ["x" * 1_000] * 1_000,
        {f"key {number}": "x" * 100 for number in range(10_000)},
        {"k" * 1_000_000: "v" * 1_000_000},
        [[[["x" * 1_000] * 10] * 10] * 10] * 10,
        [{}] * 1_000_000,
    ],
)
def test_a_field_is_small_whatever_it_holds(value: object) -> None:
    assert len(json.dumps(fitted_field("field", value))) <= 2 * log_sizes.LONGEST_TEXT


def test_a_small_field_stays_as_it_is_and_a_large_one_says_what_was_left_out() -> None:
    small = {"tokens": {"input": 3}, "halted": ["repeat"], "none": None, "share": 0.5}
    assert fitted_field("field", small) == small
    assert fitted_field("field", list(range(100)))[-1] == "…"
    assert fitted_field("field", {str(number): number for number in range(100)})["…"] == 50


def test_the_id_of_a_conversation_is_cut_sooner() -> None:
    assert len(json.dumps(fitted_field("conversation_id", "\U0001f600" * 1_000))) <= log_sizes.LONGEST_ID


def test_a_long_value_that_its_name_says_is_secret_is_hidden_and_not_cut() -> None:
    long = "word " * 10_000
    assert fitted_field("api_key", long) == "****"
    assert fitted_field("headers", {"x" * 3_000 + "-token": long})
    assert "word" not in json.dumps(fitted_field("headers", {"x" * 1_000 + "-token": long}))


@pytest.mark.parametrize("part", HOSTILE)
def test_a_traceback_keeps_its_head_and_what_was_raised(part: str) -> None:
    frames = "".join(f'  File "one.py", line {number}\n' for number in range(3_000))
    text = fitted_traceback(f"Traceback (most recent call last):\n{frames}ValueError: {part * 100_000}")
    assert text.startswith("Traceback (most recent call last):\n")
    assert "line 2999" in text
    assert "ValueError: " in text
    assert len(json.dumps(text)) <= log_sizes.LONGEST_TRACEBACK + 50


def test_no_cut_in_a_traceback_shows_a_part_of_a_secret() -> None:
    for moved in range(0, 60, 3):
        text = f"Traceback\n{'x' * moved} {'canary-of-the-file ' * 10_000}\nValueError: {'canary-of-the-file ' * 1_000}"
        assert "canary" not in fitted_traceback(text)
