"""What the gateway relies on inside libraries is checked by name before it is used."""

import openai
import pytest

from pallas_gateway.changes.change import Name
from pallas_gateway.changes.names import incompatible, misfit


class Kept:
    def __init__(self) -> None:
        self.kept = 1


class Fits(Kept):
    def load(self, *, force: bool) -> None: ...

    value = 7


FITS = f"{__name__}:Fits"


def test_a_name_may_be_checked_before_its_module_is_imported() -> None:
    assert misfit((Name("openai:AsyncOpenAI._process_response_data", ("data",)),)) is None
    for path in ("openai:Gone.at_all", "openai.gone:at_all"):
        assert misfit((Name(path),)) == f"{path.partition(':')[0]}.at_all is missing or has changed"
    assert not hasattr(openai, "Gone")


def test_what_instances_get_when_they_are_made_counts_as_the_classs() -> None:
    assert misfit((Name(f"{FITS}.kept"),)) is None
    assert misfit((Name(f"{FITS}.dropped"),)) == "Fits.dropped is missing or has changed"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("gone", ()), ("load", ("self", "renamed")), ("value", ("self",))],
    ids=["gone", "another parameter", "no function any more"],
)
def test_the_first_name_that_does_not_fit_is_said(name: str, parameters: tuple[str, ...]) -> None:
    names = (Name(f"{FITS}.load", ("self", "force")), Name(f"{FITS}.{name}", parameters), Name(f"{FITS}.later"))
    assert misfit(names) == f"Fits.{name} is missing or has changed"


def test_a_library_that_does_not_fit_is_a_platform_error() -> None:
    error = incompatible("fast-agent-mcp", "a name is missing")
    assert str(error).startswith("fast-agent-mcp 0.")
    assert " does not fit: a name is missing. Install " in str(error)
    assert "requirements.lock" in str(error)
    assert error.reason == "platform_mismatch"
