"""docs/use/threads.md lists the reasons of errors with their statuses."""

import re
from pathlib import Path

import pytest

from pallas_gateway.doors.api.errors import BY_REASON, ApiError, response_to
from pallas_gateway.errors import CallFailedError, CallRefusedError
from pallas_gateway.features.threads.records import CANCELLED

TEXT = (Path(__file__).parents[4] / "docs" / "use" / "threads.md").read_text()
ROWS = re.findall(r"^\| (\d{3}[^|]*) \| ([^\n]*) \|$", TEXT, re.MULTILINE)


def documented(reason: str) -> set[int]:
    """The statuses of the rows that name a reason."""
    found = [statuses for statuses, says in ROWS if f"`{reason}`" in says]
    return {int(status) for statuses in found for status in re.findall(r"\d{3}", statuses)}


@pytest.mark.parametrize("reason", BY_REASON)
def test_each_reason_with_a_status_of_its_own_is_in_the_document(reason: str) -> None:
    assert response_to(ApiError("why", reason=reason)).status_code in documented(reason)


@pytest.mark.parametrize("reason", [CANCELLED.error_reason, "llm_error", "abandoned"])
def test_a_call_that_failed_or_was_cancelled_is_502_as_the_document_says(reason: str) -> None:
    assert documented(reason) == {response_to(CallFailedError("why", reason=reason)).status_code} == {502}


def test_a_refusal_that_is_not_listed_is_422_as_the_document_says() -> None:
    assert documented("images_unsupported") == {422}
    assert response_to(CallRefusedError("why", reason="images_unsupported")).status_code == 422


def test_another_method_is_405_as_the_document_says() -> None:
    assert documented("method_not_allowed") == {405}
