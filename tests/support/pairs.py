"""Parameters of a test whose every combination would show no more than a few of them."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest

type Axis = Sequence[Any] | Mapping[str, Any]
"""Values of a parameter, or of several whose names have commas between; with the names of its cases, or without."""


def pairs(axes: Mapping[str, Axis], *, crossed: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Parametrise with each value of each axis at least once, and with all combinations of the axes `crossed`.

    The cases are as many as the longest axis has values, or the crossed ones combinations; shorter axes begin again.
    """
    combined = [*product(*(_cases(axes[name]) for name in crossed))]
    turns = {name: _cases(axis) for name, axis in axes.items() if name not in crossed}
    count = max(len(combined) if crossed else 0, *map(len, turns.values()), 0)
    rows = []
    for number in range(count):
        one = {name: cases[number % len(cases)] for name, cases in turns.items()}
        one |= zip(crossed, combined[number % len(combined)], strict=True)
        rows.append(_row([(name, *one[name]) for name in axes]))
    return pytest.mark.parametrize(", ".join(axes), rows)


def _cases(axis: Axis) -> list[tuple[str | None, Any]]:
    return [*axis.items()] if isinstance(axis, Mapping) else [(None, value) for value in axis]


def _row(cells: Sequence[tuple[str, str | None, Any]]) -> Any:
    values = [value for name, _, cell in cells for value in (cell if "," in name else [cell])]
    ids = [id_ if id_ is not None else str(cell) for _, id_, cell in cells]
    return pytest.param(*values, id="-".join(ids) if any(id_ for _, id_, _ in cells) else None)
