"""OpenAI's types are imported when they are used, and are those that an eager import has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from pallas_gateway.runtime.fast_paths import VARIABLE
from pallas_gateway.runtime.fast_paths.lazy_types import sources_of

MODULES_OF_A_CHAT_MODEL = 290
"""Some more than today; without lazy imports 620."""
PROGRAM = """
import json, sys
from pallas_gateway.runtime import fast_paths, patches
patches.prepare()
before = len(sys.modules)
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider
from pallas_gateway.runtime.llm.warm_up import warm_up
warm_up(ModelFactory._load_provider_class(Provider.GENERIC))
shown = {"imported": len(sys.modules) - before, "states": fast_paths.states()}

import openai
from openai.types.chat import *
shown["star"] = ChatCompletion.__module__
shown["submodule"] = openai.types.batch_error.BatchError.__module__
shown["missing"] = [hasattr(openai.types, name) for name in ("no_such_type", "_no_such_type")]
types = {}
for package in ("openai.types", "openai.types.responses", "openai.types.chat", "openai.types.shared"):
    module = __import__(package, fromlist=["*"])
    types[package] = {name: str(getattr(module, name)) for name in sorted(dir(module)) if name[0].isupper()}
shown["types"] = types
print(json.dumps(shown))
"""


def run(**environment: str) -> dict[str, Any]:
    inherited = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    shown = subprocess.run(command, env={**inherited, **environment}, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def test_chat_model_imports_the_types_of_its_api() -> None:
    lazy, eager = run(), run(**{VARIABLE: "openai_imports"})

    assert lazy.pop("imported") <= MODULES_OF_A_CHAT_MODEL < eager.pop("imported")
    assert lazy.pop("states") == {**eager.pop("states"), "openai_imports": True}
    assert lazy["types"]["openai.types"]["Batch"] == "<class 'openai.types.batch.Batch'>"
    assert lazy["missing"] == [False, False]
    assert lazy == eager


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        (
            "# From a specification.\nfrom __future__ import annotations\nfrom .one import A as A, b as C\n",
            {"A": ("one", "A"), "C": ("one", "b")},
        ),
        ("", {}),
        ("from .one import A\nA.update_forward_refs()\n", None),
        ("from . import one\n", None),
        ("from ..one import A\n", None),
        ("import os\n", None),
    ],
)
def test_package_with_more_than_imports_of_its_modules_is_imported_as_it_is(text: str, sources: object) -> None:
    assert sources_of(text) == sources
