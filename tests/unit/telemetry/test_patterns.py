"""No regular expression of the package takes longer than in proportion to its text; each is found in the source.

The texts are made from the patterns, so a new pattern is tried without a line here.
"""

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from time import thread_time
from typing import Annotated, Any

import pytest
from pydantic import Field, TypeAdapter
from pydantic_core import SchemaError

import pallas_gateway
from pallas_gateway.telemetry import redaction
from pallas_gateway.telemetry.redaction import cleaned, redacted, without_numbers
from tests.support.patterns import MEASURABLE_SECONDS, Hostile, growth, hostile_texts

PACKAGE = Path(pallas_gateway.__file__).parent
USES = {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
MOST_CHARACTERS = 16_000
ENOUGH_PARTS = 150  # a text of so many parts, and of 4,000 characters, shows that a pattern is quadratic
OPERATORS_ONLY = {
    "pallas_gateway.config.yaml.expansion:PLACEHOLDER": "values of agents.yaml and fastagent.config.yaml",
    "pallas_gateway.config.loading.secret_values:_LOOKS_RANDOM": "headers of fastagent.config.yaml",
    "pallas_gateway.repairs.fast_agent.braced_defaults:_BRACED_DEFAULT": "fastagent.config.yaml",
}
"""Quadratic patterns, and the text that they see: it is the operator's own."""
WRAPPERS = {("pallas_gateway.config.model.values", "_fits"): "fullmatch"}
"""Functions of a module that apply a parameter called `pattern`, and how."""


@dataclass
class Use:
    """One pattern, and how it is applied: an expression of its module whose value is the pattern or its source."""

    module: str
    expression: ast.expr
    method: str

    @property
    def name(self) -> str:
        return f"{self.module}:{ast.unparse(self.expression)[:40]}-{self.method}"

    @cached_property
    def pattern(self) -> re.Pattern[Any]:
        code = compile(ast.Expression(self.expression), self.module, "eval")
        return re.compile(eval(code, vars(importlib.import_module(self.module))))  # noqa: S307  the package's own

    def on(self, text: str) -> object:
        subject: Any = text if isinstance(self.pattern.pattern, str) else text.encode()
        apply = getattr(self.pattern, self.method)
        if self.method in {"sub", "subn"}:
            return apply(b"" if isinstance(subject, bytes) else "", subject)
        return list(apply(subject)) if self.method == "finditer" else apply(subject)


@cache
def modules() -> dict[str, ast.Module]:
    files = sorted(PACKAGE.rglob("*.py"))
    names = {".".join(("pallas_gateway", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in files}
    return {name: ast.parse(path.read_text()) for name, path in names.items() if not name.endswith("__main__")}


@cache
def uses() -> list[Use]:
    """Every pattern of the package with every way in which it is used."""
    return [use for name, tree in modules().items() for use in uses_in(name, tree)]


def uses_in(module: str, tree: ast.Module) -> Iterator[Use]:
    named = {id(node.value): node.targets[0] for node in tree.body if isinstance(node, ast.Assign)}
    for node in calls()[module]:
        if (wrapper := (module, str(last_name(node.func)))) in WRAPPERS:
            yield Use(module, node.args[0], WRAPPERS[wrapper])
            continue
        if not is_of_re(node.func) or last_name(node.args[0]) == "pattern":
            continue
        if isinstance(name := named.get(id(node)), ast.Name):
            used = ast.copy_location(ast.Name(name.id, ast.Load()), name)
            yield from (Use(module, used, method) for method in sorted(methods_of(name.id, module)))
        else:
            method = last_name(node.func)
            yield Use(module, node.args[0], "search" if method == "compile" else str(method))  # search tries most


@cache
def calls() -> dict[str, list[ast.Call]]:
    return {name: [node for node in ast.walk(tree) if isinstance(node, ast.Call)] for name, tree in modules().items()}


def is_of_re(function: ast.expr) -> bool:
    is_one = isinstance(function, ast.Attribute) and last_name(function.value) == "re"
    return is_one and last_name(function) in {*USES, "compile"}


def methods_of(constant: str, module: str) -> set[str]:
    """How a constant is used: in its own module, and where it is imported."""
    found = [calls()[module]] if constant.startswith("_") else calls().values()
    functions = [call.func for of_module in found for call in of_module if isinstance(call.func, ast.Attribute)]
    return {one.attr for one in functions if one.attr in USES and last_name(one.value) == constant} or {"search"}


def last_name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)


def texts_of(pattern: re.Pattern[Any]) -> list[Hostile]:
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    return hostile_texts(source, pattern.flags & ~re.UNICODE)


def quadratic_text(use: Use) -> Hostile | None:
    return next((text for text in texts_of(use.pattern) if is_quadratic(use.on, text)), None)


def is_quadratic(run: Callable[[str], object], text: Hostile) -> bool:
    longest = min(MOST_CHARACTERS, max(4_000, ENOUGH_PARTS * len(text.part)))
    return seconds(run, text.of(longest)) >= MEASURABLE_SECONDS and growth(run, text, longest) >= 3


def seconds(run: Callable[[str], object], text: str) -> float:
    began = thread_time()
    run(text)
    return thread_time() - began


def test_the_patterns_of_the_package_are_found() -> None:
    found = {use.name for use in uses()}
    assert {f"pallas_gateway.telemetry.redaction:{name}-sub" for name in redaction_patterns()} <= found
    assert len(found) > 40


def test_no_pattern_takes_longer_than_its_text_is_long_but_those_that_see_the_operators_text() -> None:
    quadratic = {use.name.rpartition("-")[0]: text for use in uses() if (text := quadratic_text(use)) is not None}
    assert quadratic.keys() == OPERATORS_ONLY.keys(), quadratic


def test_patterns_of_models_are_left_to_the_engine_whose_time_is_linear() -> None:
    """Pydantic's default engine is Rust's, which backtracks nowhere (https://docs.rs/regex)."""
    every = [call for of_module in calls().values() for call in of_module]
    assert not [ast.unparse(call) for call in every if any(one.arg == "regex_engine" for one in call.keywords)]
    with pytest.raises(SchemaError, match="backreferences are not supported"):
        TypeAdapter(Annotated[str, Field(pattern=r"(a)\1")])


# Redaction, whole: its patterns one after another, on texts that each of them is made to look at


def redaction_patterns() -> dict[str, re.Pattern[str]]:
    return {name: value for name, value in vars(redaction).items() if isinstance(value, re.Pattern)}


EVERY_HINT = " ".join((*redaction._NAMED_HINTS, *redaction._SHAPE_HINTS, "bearer basic ://a@ ?a=\n"))


@pytest.mark.parametrize("run", [cleaned, without_numbers])
@pytest.mark.parametrize("name", sorted(redaction_patterns()))
def test_redaction_takes_no_longer_than_its_text_is_long(name: str, run: Callable[[str], str]) -> None:
    texts = texts_of(redaction_patterns()[name])
    hinted = [Hostile(f"{EVERY_HINT}{text.head}", text.part, text.tail) for text in texts]
    costliest = max(hinted, key=lambda text: seconds(run, text.of(1_000)))
    assert growth(run, costliest, 2 * MOST_CHARACTERS) < 3, costliest


def test_every_hint_leads_to_its_patterns() -> None:
    """Without the hints, the same would be hidden."""
    for said in ("accesstoken: abc1", "refreshtoken=abc1", "idtoken: 'abc1'", "authtoken=abc1", "x-my-token: abc1"):
        assert "abc1" not in redacted(said)
