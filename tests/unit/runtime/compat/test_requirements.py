"""What the gateway relies on inside fast-agent, and in what it brings, is checked by name before it is used."""

import openai
import pytest

from pallas_gateway.errors import PlatformError
from pallas_gateway.runtime.compat.requirements import check_names


class Kept:
    def __init__(self) -> None:
        self.kept = 1


class Fits(Kept):
    def load(self, *, force: bool) -> None: ...

    value = 7


def test_an_owner_may_be_named_before_it_is_imported() -> None:
    check_names((("openai:AsyncOpenAI", "_process_response_data", ("data",)),))
    for owner in ("openai:Gone", "openai.gone"):
        with pytest.raises(PlatformError, match=rf"does not fit: {owner}\.at_all is missing"):
            check_names(((owner, "at_all", ()),))
    assert not hasattr(openai, "Gone")


def test_what_instances_get_when_they_are_made_counts_as_the_classs() -> None:
    check_names(((Fits, "kept", ()),))
    with pytest.raises(PlatformError, match=r"Fits\.dropped is missing"):
        check_names(((Fits, "dropped", ()),))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("gone", ()), ("load", ("self", "renamed")), ("value", ("self",))],
    ids=["gone", "another parameter", "no function any more"],
)
def test_a_name_that_does_not_fit_is_a_platform_error(name: str, parameters: tuple[str, ...]) -> None:
    with pytest.raises(PlatformError, match=rf"fast-agent \d+\.\S+ does not fit: Fits\.{name}") as raised:
        check_names(((Fits, "load", ("self", "force")), (Fits, name, parameters)))
    assert raised.value.reason == "platform_mismatch"
    assert "requirements.lock" in str(raised.value)
