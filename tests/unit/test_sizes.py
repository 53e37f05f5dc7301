"""The project is not larger than tests/figures/budget.toml allows; `python -m tests.figures.sizes` prints both."""

import ast

from tests.figures.sizes import budget, measured, public_names

OF_A_CALL = {"functions_of_a_call", "modules_of_a_call"}
"""tests/e2e/test_path_of_a_call.py counts them."""


def test_nothing_is_larger_than_its_budget() -> None:
    allowed, found = budget(), measured()
    assert found.keys() | OF_A_CALL == allowed.keys()
    too_large = {kind: (size, allowed[kind]) for kind, size in found.items() if size > allowed[kind]}
    assert too_large == {}, "delete something, or raise the budget in a commit of its own, with the reason"


def test_public_names_are_those_that_a_module_defines_at_its_top() -> None:
    module = """
import os
A = B = 1
C: int = 2
type D = int
_E = 3
A.x = 4
def f():
    g = 1
async def h(): ...
class I:
    j = 1
def _k(): ...
"""
    assert [*public_names(ast.parse(module))] == ["A", "B", "C", "D", "f", "h", "I"]
