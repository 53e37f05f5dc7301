"""Each kind of field that MCP allows, and hostile ones."""

from typing import Any

import pytest

from pallas_gateway.client.form_fields import LONGEST_LABEL, LONGEST_TEXT, MOST_CHOICES, FormField, fields_in, harmless


def field(schema: dict[str, Any], name: str = "it", *, is_required: bool = True) -> FormField:
    return FormField(name, schema, is_required)


TITLED = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}, {"const": "2", "title": "Two, or so"}]

KINDS: list[tuple[dict[str, Any], str, list[tuple[str, Any]]]] = [
    ({"type": "string"}, "it: ", [("text", "text"), ("", "")]),
    ({"type": "string", "title": "Name", "description": "your own"}, "Name (your own): ", []),
    ({"type": "string", "format": "email"}, "it (an e-mail address): ", [("a@b.example", "a@b.example")]),
    ({"type": "string", "format": "uri"}, "it (an address): ", []),
    ({"type": "string", "format": "date"}, "it (such as 2026-01-31): ", []),
    ({"type": "string", "format": "date-time"}, "it (such as 2026-01-31T18:00:00Z): ", []),
    ({"type": "string", "format": "other", "pattern": "^a$"}, "it (pattern ^a$): ", []),
    ({"type": "integer", "default": 7}, "it [7]: ", [("36", 36), ("-1", -1), ("1.5", "1.5"), ("9" * 5000, "9" * 5000)]),
    ({"type": "number", "default": 1.5}, "it [1.5]: ", [("2", 2.0), ("1e3", 1000.0), ("nan", "nan"), ("inf", "inf")]),
    ({"type": "boolean", "default": False}, "it (y or n) [n]: ", [("y", True), ("No", False), ("maybe", "maybe")]),
    (
        {"type": "string", "enum": ["s", "m"], "default": "m"},
        "it\n  1. s\n  2. m [default]\nit (1-2) [2]: ",
        [("m", "m"), ("1", "s"), ("3", "3"), ("0", "0")],
    ),
    (
        {"type": "string", "enum": ["s", "m"], "enumNames": ["Small"]},
        "it\n  1. Small (s)\n  2. m\nit (1-2): ",
        [("Small", "s"), ("s", "s")],
    ),
    (
        {"type": "string", "oneOf": TITLED},
        "it\n  1. Red (r)\n  2. Green (g)\n  3. Two, or so (2)\nit: ",
        [("Red", "r"), ("1", "r"), ("2", "2"), ("3", "2"), ("g", "g")],  # a value goes before a number
    ),
    (
        {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "default": ["a", "b"]},
        "it (several, with commas)\n  1. a [default]\n  2. b [default]\nit (1-2) [1,2]: ",
        [("a, b", ["a", "b"]), ("2,1", ["b", "a"]), ("a,a,", ["a"]), ("c", ["c"]), ("", [])],
    ),
    (
        {"type": "array", "items": {"anyOf": TITLED[:2]}},
        "it (several, with commas)\n  1. Red (r)\n  2. Green (g)\nit (1-2): ",
        [("Red, 2", ["r", "g"])],
    ),
    (
        {"type": "string", "title": "Size", "enum": ["s"], "default": "s"},
        "Size\n  1. s [default]\nSize (1) [1]: ",
        [("1", "s")],
    ),
    ({"type": "integer", "minimum": 1, "maximum": 8}, "it (1 to 8): ", []),
    ({"type": "number", "maximum": 0.5}, "it (at most 0.5): ", []),
    ({"type": "string", "minLength": 2, "maxLength": 40}, "it (2 to 40 characters): ", []),
    ({"type": "string", "minLength": 2, "description": "your own"}, "it (your own; at least 2 characters): ", []),
    (
        {"type": "array", "items": {"enum": ["a"]}, "maxItems": 1},
        "it (several, with commas; at most 1)\n  1. a\nit (1): ",
        [],
    ),
]


@pytest.mark.parametrize(("schema", "prompt", "typed"), KINDS)
def test_each_kind_of_field_is_shown_and_read(
    schema: dict[str, Any], prompt: str, typed: list[tuple[str, Any]]
) -> None:
    assert field(schema).prompt() == prompt
    for text, value in typed:
        read = field(schema).value_of(text)
        assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("schema", "text", "why"),
    [
        ({"type": "integer"}, "many", "It must be a whole number"),
        ({"type": "number"}, "many", "It must be a number"),
        ({"type": "boolean"}, "perhaps", "It must be y or n"),
        ({"type": "string", "maxLength": 2}, "abc", "It must have at most 2 characters"),
        ({"type": "string", "oneOf": TITLED}, "blue", "It must be one of: Red, Green, Two, or so"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "a,c", "It must be one of: a, b"),
        (
            {"enum": [f"c{number}" for number in range(MOST_CHOICES + 5)]},
            "a",
            f"It must be one of: {', '.join(f'c{number}' for number in range(MOST_CHOICES))}, … and 5 more",
        ),
    ],
)
def test_the_reason_why_a_value_does_not_fit_names_the_title(schema: dict[str, Any], text: str, why: str) -> None:
    one = field({"title": "It", **schema})
    assert one.misfit(one.value_of(text)) == why


def test_a_field_may_be_left_out_only_if_it_is_not_required() -> None:
    by_name = {one.name: one for one in fields_in({"properties": {"a": {}, "b": []}, "required": ["a"]})}
    assert (by_name["a"].prompt(), by_name["b"].prompt()) == ("a: ", "b [leave out]: ")


def test_a_field_that_may_be_null_is_shown_and_read_as_its_other_type() -> None:
    # What servers of the MCP SDK 1 send for `age: int | None = None`.
    schema = {"anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}], "default": None, "title": "Age"}
    (age,) = fields_in({"properties": {"age": schema}})
    assert age.prompt() == "Age (at least 1) [leave out]: "
    assert age.value_of("7") == 7
    assert (age.misfit(7), age.misfit(0)) == (None, "Age must be at least 1")


@pytest.mark.parametrize(
    ("schema", "name"),
    [({"type": "string", "format": "password", "default": "pw"}, "it"), ({"default": "pw"}, "api_key")],
)
def test_a_secrets_default_is_not_shown(schema: dict[str, Any], name: str) -> None:
    secret = field(schema, name)
    assert secret.is_hidden
    assert secret.prompt() == f"{name} [default]: "


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "default": "many"},
        {"type": "string", "enum": ["a"], "default": "b"},
        {"type": "string", "maxLength": 2, "default": "long"},
        {"type": "array", "items": {"enum": ["a"]}, "default": ["a", {}]},
    ],
)
def test_a_default_that_does_not_fit_is_none(schema: dict[str, Any]) -> None:
    assert field(schema).default is None


HOSTILE: list[dict[str, Any]] = [
    {"title": "Name\x1b[2J\x1b]0;owned\x07\u202e\u2028\u200b\x9b31m\ud800"},
    {"description": "<script>alert(1)</script>\r\n\nPassword accepted.\n$ rm -rf /"},
    {"title": "x" * 1_000_000, "description": "y" * 1_000_000, "default": "z" * 1_000_000, "pattern": "p" * 1_000_000},
    {"type": "string", "enum": [f"\x1b{number}" for number in range(100_000)]},
    {"type": "string", "enum": ["v" * 1_000_000], "enumNames": ["n\n" * 1_000_000]},
    {"type": "array", "items": {"anyOf": [{"const": "a\nb", "title": "\x07\nRed"}] * 100_000}},
    {"type": "array", "items": ["a"], "default": 5},
    {"type": ["string", "null"], "format": {}, "enum": [{}, [], None], "enumNames": 5, "default": {"a": "\x1b"}},
    {"items": {"enum": ["a"]}, "enum": ["b"], "default": ["a"]},
    {"enum": ["1"], "default": {}},
    {"type": "integer", "minimum": "\x1b", "maximum": True, "maxLength": [], "minLength": {}},
    {"oneOf": [None, 5, {"const": []}], "title": ["\x1b"], "description": {"\x1b": 1}, "pattern": 5},
]


@pytest.mark.parametrize("schema", HOSTILE)
def test_hostile_fields_are_shown_harmlessly(schema: dict[str, Any]) -> None:
    one = field(schema, "na\nme\x1b")
    prompt = one.prompt()
    lines = prompt.split("\n")
    assert not [mark for mark in prompt if mark != "\n" and not mark.isprintable()]
    assert len(lines) <= MOST_CHOICES + 3
    assert all(line.startswith("  ") for line in lines[1:-1])
    assert lines[-1].startswith(one.title)
    assert all(len(line) <= 5 * LONGEST_LABEL for line in lines)
    assert "\n" not in (one.misfit(one.value_of("1")) or "")


def test_texts_are_shown_without_control_characters_and_in_limited_length() -> None:
    assert harmless("a\x1b[31m\u202eb\u200d\u2028") == "a\ufffd[31m\ufffdb\ufffd\ufffd"
    assert len(harmless("x" * 10_000_000)) == LONGEST_TEXT + 1


def test_lines_after_the_first_are_indented_so_that_none_passes_for_the_programs_own() -> None:
    assert harmless("notes: Hello\nPage: https://bank.example") == "notes: Hello\n  Page: https://bank.example"
