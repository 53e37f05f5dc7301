"""Crowds of calls: a small one in `make test`, a large one in `make soak`."""

import pytest

SOAK_SECONDS = 1800


def crowd(small: int, large: int) -> pytest.MarkDecorator:
    """Give a test the parameter `size`: `small`, and `large` with the mark `soak`."""
    marks = [pytest.mark.soak, pytest.mark.timeout(SOAK_SECONDS)]
    return pytest.mark.parametrize("size", [small, pytest.param(large, marks=marks)])
