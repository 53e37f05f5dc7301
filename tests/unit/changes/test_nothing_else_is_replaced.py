"""The gateway replaces nothing in libraries but by the registry of changes, `runtime/seams/` and named adapters."""

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.changes import change, names
from tests.support.commands import started
from tests.unit.changes.foreign_attributes import maker_of

ROOT = Path(__file__).parents[3]
SEAMS = "pallas_gateway.runtime.seams."
ADAPTERS = {
    "hypercorn.asyncio.run.TCPServer": "Hypercorn's `serve` has no parameter for the class of its connections",
    "google.genai.types.GenerateContentResponse._from_response": "`google_chunks` replaces it, as a class method",
    "openai.NotGiven.__deepcopy__": "`openai_requests` adds it; the class has none to replace",
}


def test_nothing_else_is_replaced(tmp_path: Path) -> None:
    module = "tests.unit.changes.foreign_attributes"
    with started([str(tmp_path)], tmp_path, command=("-m", module), environ={"PYTHONPATH": str(ROOT)}) as program:
        ran = program.end()
    assert ran.code == 0, ran.err
    found = [line.split("\t") for line in ran.out.splitlines() if line.count("\t") == 3]
    assert [one for one in found if one[3]], "the registry has replaced nothing"

    unlisted = [
        (f"{holder.replace(':', '.')}.{attribute}", maker)
        for holder, attribute, maker, registered in found
        if not registered and not maker.startswith(SEAMS)
    ]
    others = {name: maker.removeprefix("pallas_gateway.") for name, maker in unlisted if name not in ADAPTERS}
    assert others == {}
    assert ADAPTERS.keys() - {name for name, _ in unlisted} == set()


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(function)(names.misfit)


class Foreign:
    plain = change.Name
    method = names.misfit
    static = staticmethod(names.misfit)
    partly = functools.partial(names.misfit, ())
    partial_method = functools.partialmethod(names.misfit)
    shown = property(names.misfit)
    cached = functools.cached_property(names.misfit)
    remembered = functools.lru_cache(names.installed)
    wrapped = wrapped(subprocess.run)
    inside = functools.wraps(names.misfit)(lambda: None)
    value = change.Name("json:dumps")


@pytest.mark.parametrize("name", [name for name in vars(Foreign) if not name.startswith("_")])
def test_code_of_the_gateway_is_found(name: str) -> None:
    assert (maker_of(vars(Foreign)[name]) or "").startswith("pallas_gateway.changes.")


@pytest.mark.parametrize("value", [subprocess.run, Foreign, 7, "text", functools.partial(print), None, property()])
def test_other_code_is_not(value: object) -> None:
    assert maker_of(value) is None
