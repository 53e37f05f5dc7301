"""The challenge reader: takes every right header and none that is almost right."""

import pytest

from tests.support.challenges import Challenge, parse_challenge


@pytest.mark.parametrize(
    ("value", "parameters"),
    [
        ("Bearer", {}),
        ('Bearer realm="a, b=c"', {"realm": "a, b=c"}),
        ('Bearer ERROR=invalid_token, scope="a b:c" ,  x = "say \\"hi\\""', {
            "error": "invalid_token", "scope": "a b:c", "x": 'say "hi"',
        }),
        ('Bearer resource_metadata="http://h:1/a/b?c=d",error="e"', {
            "resource_metadata": "http://h:1/a/b?c=d", "error": "e",
        }),
    ],
)  # fmt: skip
def test_right_headers_are_read(value: str, parameters: dict[str, str]) -> None:
    assert parse_challenge(value) == Challenge("Bearer", parameters)


@pytest.mark.parametrize(
    "value",
    [
        "",
        " Bearer",
        'Bearer, error="x"',
        "Bearer error=http://h/",
        'Bearer error="x" scope="y"',
        'Bearer error="x",',
        'Bearer error="x",, scope="y"',
        'Bearer error="x", error="y"',
        'Bearer error="x", Error="y"',
        'Bearer error="x',
        'Bearer error="x"y',
        'Bearer error="x", Basic realm="y"',
        'Bearer error="a\nb"',
        'Bearer error="é"',
        'Bearer error_description="no \\"quotes\\" here"',
        'Bearer scope=""',
    ],
)
def test_almost_right_headers_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"no challenge|cannot read|forbids"):
        parse_challenge(value)
