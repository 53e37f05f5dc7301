"""The fields of a form at the command line: how each is shown, and how typed text becomes its value. Pure.

A form is a downstream's text: it is shown without control characters and in limited length, each label on one line.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pallas_gateway.calls.forms import choices_of, fields_of, misfit_of_field, required_in, without_null
from pallas_gateway.config.loading.secret_values import is_secret_name

type Choice = tuple[str | int | float, str]
"""A value, and its label."""

NO_WORDS: Mapping[str, str] = MappingProxyType({})
"""Words that are typed for choices: none."""
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
_PLAIN = {
    "must be of type boolean": "must be y or n",
    "must be of type integer": "must be a whole number",
    "must be of type number": "must be a number",
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
    def title(self) -> str:
        """Return its title, on one line; without one, its key."""
        return _line(self.schema.get("title") or self.name)

    @property
    def is_hidden(self) -> bool:
        """Return whether its value is not shown while it is typed."""
        return self.schema.get("format") == "password" or is_secret_name(self.name)

    @property
    def default(self) -> Any:
        """Return its default; None if it has none that fits."""
        value = self.schema.get("default")
        return None if value is None or misfit_of_field(self.schema, value) is not None else value

    def misfit(self, value: Any) -> str | None:
        """Return why a value does not fit, as a clause that names the field by its title; None if it fits."""
        why = misfit_of_field(self.schema, value)
        if why is None:
            return None
        if why == "is not one of the choices":
            labels = [label for _, label in self._choices()]
            more = [f"… and {len(labels) - MOST_CHOICES} more"] if len(labels) > MOST_CHOICES else []
            why = f"must be one of: {_line(', '.join([*labels[:MOST_CHOICES], *more]))}"
        return f"{self.title} {_PLAIN.get(why, why)}"

    def value_of(self, text: str) -> Any:
        """Return typed text as a value of the field's type: choices by value, number or title; else the text itself."""
        kind = self.schema.get("type")
        if kind == "array":
            return list(dict.fromkeys(self._chosen(part.strip()) for part in text.split(",") if part.strip()))
        if kind == "boolean":
            return _WORDS.get(text.lower(), text)
        chosen = self._chosen(text)
        return _number(text, kind) if chosen is text and kind in ("integer", "number") else chosen

    def value_typed(self, text: str) -> Any:
        """Return text of a terminal as `value_of` does; the beginning of one choice alone stands for it."""
        value, folded = self.value_of(text), text.casefold()
        if not folded or isinstance(value, list) or self.misfit(value) is None:
            return value
        meant = [
            one
            for one, label in self._choices()
            if f"{one}".casefold().startswith(folded) or label.casefold().startswith(folded)
        ]
        return meant[0] if len(meant) == 1 else value

    def prompt(self, words: Mapping[str, str] = NO_WORDS) -> str:
        """Return its prompt: the title, the description, hints on the form of the value, the default.

        The choices of a field follow its description, and the prompt itself is a line of its own after them, which
        offers the shortest of `words`, typed for choices.
        """
        kind, wanted = self.schema.get("type"), self.schema.get("format")
        hints = [self.schema.get("description"), *(_HINTS.get(one) for one in (kind, wanted) if isinstance(one, str))]
        if isinstance(pattern := self.schema.get("pattern"), str):
            hints.append(f"pattern {pattern}")
        about = "; ".join(_line(one) for one in (*hints, *self._limits()) if one)
        title = f"{self.title} ({about})" if about else self.title
        choices = self._choices()
        if not choices:
            return f"{title}{self._default_hint()}: "
        return "\n".join([title, *self._lines_of(choices), self._prompt_after(choices, words)])

    def _limits(self) -> list[str]:
        limits = [("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", "")]
        return [text for least, most, unit in limits if (text := self._limit(least, most, unit))]

    def _limit(self, least_key: str, most_key: str, unit: str) -> str:
        least, most = (
            value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
            for value in (self.schema.get(least_key), self.schema.get(most_key))
        )
        if least is not None and most is not None:
            return f"{least} to {most}{unit}"
        if least is not None:
            return f"at least {least}{unit}"
        return f"at most {most}{unit}" if most is not None else ""

    def _lines_of(self, choices: Sequence[Choice]) -> Iterator[str]:
        defaults = self._defaults()
        for number, (value, label) in enumerate(choices[:MOST_CHOICES], 1):
            same = "" if label == str(value) else f" ({_line(value)})"
            yield f"  {number}. {_line(label)}{same}{' [default]' if value in defaults else ''}"
        if len(choices) > MOST_CHOICES:
            yield f"  … and {len(choices) - MOST_CHOICES} more"

    def _prompt_after(self, choices: Sequence[Choice], words: Mapping[str, str]) -> str:
        """Return the line after the choices; it offers their numbers, unless one of them is another choice's value."""
        numbers = {str(value): number for number, (value, _) in enumerate(choices, 1)}
        last = len(choices)
        if any(numbers.get(str(number), number) != number for number in range(1, last + 1)):
            return f"{self.title}{self._default_hint()}: "
        defaults = self._defaults()
        default = ",".join(str(number) for number, (value, _) in enumerate(choices, 1) if value in defaults)
        hint = f" [{_line(default)}]" if default else self._default_hint()
        offered = [f"1-{last}" if last > 1 else f"{last}", *(f"{one}: {words[one]}" for one in words if len(one) == 1)]
        return f"{self.title} ({', '.join(offered)}){hint}: "

    def _defaults(self) -> set[str | int | float]:
        """Return its default choices; none if it is hidden."""
        default = None if self.is_hidden else self.default
        values = default if isinstance(default, list) else [default]
        return {value for value in values if isinstance(value, (str, int, float))}

    def _default_hint(self) -> str:
        default = self.default
        if default is None:
            return "" if self.is_required else " [leave out]"
        if self.is_hidden:
            return " [default]"
        values = default if isinstance(default, list) else [default]
        return f" [{_line(', '.join(_word(value) for value in values))}]"

    def _choices(self) -> list[Choice]:
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
