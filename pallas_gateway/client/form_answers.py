"""Values of `--answer`: which field of a form each is for, and which fit none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_gateway.client.form_fields import harmless
from pallas_gateway.client.output import problem
from pallas_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pallas_gateway.client.form_fields import FormField


class UnfitAnswerError(GatewayError):
    """A question was declined because a value of `--answer` does not fit its field."""

    reason = "unfit_answer"


class PreparedAnswers:
    """The values of `--answer` by their names, and what became of them in the questions of a command."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._used: set[str] = set()
        self._asked: dict[str, None] = {}
        self._declined: list[str] = []

    def values_for(self, fields: Sequence[FormField]) -> tuple[dict[str, Any], list[str]]:
        """Return the values for a form by the names of its fields, and why others do not fit, as texts to show."""
        values: dict[str, Any] = {}
        unfit = []
        names = self._names_by_field(fields)
        for field in fields:
            self._asked[field.name] = None
            if (name := names.get(field.name)) is None:
                continue
            self._used.add(name)
            value = field.value_of(self._texts[name])
            if (why := field.misfit(value)) is None:
                values[field.name] = value
            else:
                unfit.append(f"--answer {name}: {why}")
        return values, unfit

    def note_declined(self, unfit: Iterable[str]) -> None:
        """Keep the reasons why a form was declined."""
        self._declined += unfit

    def finish(self) -> None:
        """Print a warning for each name that no question had.

        Raises:
            UnfitAnswerError: a question was declined because a value does not fit.
        """
        asked = f"asked: {', '.join(self._asked)}" if self._asked else "no form was asked"
        for name in self._texts:
            if name not in self._used:
                problem(harmless(f"--answer {name}: no question had this field ({asked})"))
        if self._declined:
            reasons = "; ".join(dict.fromkeys(self._declined))
            raise UnfitAnswerError(harmless(f"A question was declined: {reasons}."))

    def _names_by_field(self, fields: Sequence[FormField]) -> dict[str, str]:
        keys = {field.name for field in fields}
        names = {}
        for given in sorted(self._texts, key=keys.__contains__):  # a field's key goes before its title
            if (field := _named(given, fields)) is not None:
                names[field.name] = given
        return names


def _named(given: str, fields: Sequence[FormField]) -> FormField | None:
    """Return the field of that key, else of that title, else the only one that has either in other case."""
    folded = given.casefold()
    for matching in (
        [field for field in fields if field.name == given],
        [field for field in fields if field.title == given],
        [field for field in fields if folded in (field.name.casefold(), field.title.casefold())],
    ):
        if matching:
            return matching[0] if len(matching) == 1 else None
    return None
