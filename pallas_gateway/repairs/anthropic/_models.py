"""Rules of Anthropic's models, by their names."""

from __future__ import annotations

import re

_TAKE_TWO = re.compile(r"claude-(?:v?[123]|instant|(?:opus|sonnet)-4(?:-0|-2\d{7}|@\d+)?(?![-.]?\d))")
"""Models before Opus 4.1, which accept `temperature` together with `top_p`."""


def takes_one_of_two(model: str) -> bool:
    """Return True if a model of Anthropic's, under its name at any provider, refuses `temperature` with `top_p`."""
    return "claude" in model and _TAKE_TWO.search(model) is None
