"""The fields of a form at the command line: how each is shown, and how typed text becomes its value. Pure.

A form is a downstream's text: it is shown without control characters and in limited length, each label on one line.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pallas_gateway.calls.forms import choices_of, fields_of, misfit, required_in, without_null
from pallas_gateway.config.loading.secret_values import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LONGEST_TEXT, LONGEST_LABEL, MOST_CHOICES = 20_000, 500, 50
_WORDS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
_HINTS = {
    "boolean": "y or n",
    "array": "several, with commas",
    "email": "an e-mail address",
    "uri": "an address",
    "date": "such as 2026-01-31",
    "date-time": "such as 2026-01-31T18:00:00Z",
}


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form.

    Attributes:
        name: its key in the answer.
        schema: its JSON Schema, as the server wrote it.
        is_required: the form cannot be sent without it.
    """

    name: str
    schema: Mapping[str, Any]
    is_required: bool

    @property
    def is_hidden(self) -> bool:
        """Return whether its value is not shown while it is typed."""
        return self.schema.get("format") == "password" or is_secret_name(self.name)

    @property
    def default(self) -> Any:
        """Return its default; None if it has none that fits."""
        value = self.schema.get("default")
        return None if value is None or self.misfit(value) is not None else value

    def misfit(self, value: Any) -> str | None:
        """Return why a value does not fit, as a clause that names the field; None if it fits."""
        return misfit({"properties": {self.name: self.schema}}, {self.name: value})

    def value_of(self, text: str) -> Any:
        """Return typed text as a value of the field's type: choices by value, number or title; else the text itself."""
        kind = self.schema.get("type")
        if kind == "array":
            return list(dict.fromkeys(self._chosen(part.strip()) for part in text.split(",") if part.strip()))
        if kind == "boolean":
            return _WORDS.get(text.lower(), text)
        chosen = self._chosen(text)
        return _number(text, kind) if chosen is text and kind in ("integer", "number") else chosen

    def prompt(self) -> str:
        """Return its prompt: the title, the description, hints on the form of the value, the choices, the default."""
        kind, wanted = self.schema.get("type"), self.schema.get("format")
        hints = [self.schema.get("description"), *(_HINTS.get(one) for one in (kind, wanted) if isinstance(one, str))]
        if isinstance(pattern := self.schema.get("pattern"), str):
            hints.append(f"pattern {pattern}")
        about = "; ".join(_line(one) for one in hints if one)
        title = _line(self.schema.get("title") or self.name)
        lines = [f"{title} ({about})" if about else title]
        choices = self._choices()
        for number, (value, label) in enumerate(choices[:MOST_CHOICES], 1):
            lines.append(f"  {number}. {_line(label)}" + ("" if label == str(value) else f" ({_line(value)})"))
        if len(choices) > MOST_CHOICES:
            lines.append(f"  … and {len(choices) - MOST_CHOICES} more")
        return "\n".join(lines) + self._default_hint() + ": "

    def _default_hint(self) -> str:
        default = self.default
        if default is None:
            return "" if self.is_required else " [leave out]"
        if self.is_hidden:
            return " [default]"
        values = default if isinstance(default, list) else [default]
        return f" [{_line(', '.join(_word(value) for value in values))}]"

    def _choices(self) -> list[tuple[str | int | float, str]]:
        items = self.schema.get("items")
        source = items if self.schema.get("type") == "array" and isinstance(items, dict) else self.schema
        titles = source.get("enumNames") if "enum" in source else source.get("oneOf") or source.get("anyOf")
        given = titles if isinstance(titles, list) else []
        labels = [one.get("title") if isinstance(one, dict) else one for one in given]
        return [
            (value, str(labels[at]) if at < len(labels) and labels[at] else str(value))
            for at, value in enumerate(choices_of(source) or [])
            if isinstance(value, (str, int, float))
        ]

    def _chosen(self, text: str) -> Any:
        choices = self._choices()
        for value, _ in choices:
            if str(value) == text:
                return value
        if text.isdecimal() and 1 <= int(text[:9]) <= len(choices):
            return choices[int(text) - 1][0]
        return next((value for value, label in choices if label == text), text)


def fields_in(schema: Mapping[str, Any]) -> Iterator[FormField]:
    """Yield the fields of a form."""
    required = set(required_in(schema))
    for name, field in fields_of(schema).items():
        yield FormField(name, without_null(field) if isinstance(field, dict) else {}, name in required)


def harmless(text: str) -> str:
    """Return a text of limited length without control characters, bidirectional ones included.

    Lines after the first are indented, so that no text passes for a line of this program.
    """
    cut = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
    shown = (one if one == "\n" or unicodedata.category(one) not in _UNSHOWN else "\ufffd" for one in cut)
    return "".join(shown).replace("\n", "\n  ")


_UNSHOWN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def _line(value: object) -> str:
    text = str(value)
    return harmless(text if len(text) <= LONGEST_LABEL else f"{text[:LONGEST_LABEL]}…").replace("\n  ", " ")


def _word(value: object) -> str:
    return ("y" if value else "n") if isinstance(value, bool) else str(value)


def _number(text: str, kind: object) -> Any:
    try:
        number = int(text) if kind == "integer" else float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
