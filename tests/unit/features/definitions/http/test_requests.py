"""If-Match as RFC 9110 has it."""

import pytest

from pallas_gateway.doors.api.errors import ApiError
from pallas_gateway.features.definitions.http.requests import required_tags


@pytest.mark.parametrize(
    ("lines", "matches"),
    [
        (['"3"'], True),
        (['"2"'], False),
        (['"2", "3"'], True),
        (['"2"', '"3"'], True),  # two header lines
        ([' , "3" ,, '], True),
        (['"2" ,"4"'], False),
        (["*"], True),
        ([" * "], True),
        (['W/"3"'], False),
        (['W/"3", "3"'], True),
        (['""'], False),
        (['"a,b", "3"'], True),
        (['"3,4"'], False),
    ],
)
def test_a_change_is_allowed_for_the_tags_that_match_strongly(lines: list[str], matches: bool) -> None:
    tags = required_tags(lines)
    assert (tags is None or '"3"' in tags) is matches


@pytest.mark.parametrize("line", ["3", "'3'", '"3', '"3" "4"', "*, *", '*, "3"', "", ",", 'w/"3"', '"a b"', '"3";q=1'])
def test_a_malformed_condition_is_refused_with_its_form(line: str) -> None:
    with pytest.raises(ApiError, match="If-Match must be") as refused:
        required_tags([line])
    assert refused.value.reason == "bad_input"


def test_a_change_requires_a_condition() -> None:
    with pytest.raises(ApiError, match="Send If-Match") as refused:
        required_tags([])
    assert refused.value.reason == "precondition_required"
