"""An error within an answer is lost."""

from pathlib import Path

from tests.support.calling import ask
from tests.support.provider_gateways import serving
from tests.support.provider_matrix import OPENRESPONSES
from tests.support.scripted_llm import error_event


async def test_an_error_of_openresponses_is_reported_in_its_words(tmp_path: Path) -> None:
    async with serving(tmp_path, OPENRESPONSES, [error_event("too many")]) as served:
        answer = await ask(served.url)

    assert answer.is_error
    assert answer.text.endswith(": its provider reported: too many")
