"""Each generated page is what `make docs` writes."""

import pytest

from tests.pages import PAGES, ROOT, text_of


@pytest.mark.parametrize("path", PAGES)
def test_a_generated_page_is_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == text_of(path), "run `make docs`"
