"""Documents for the Responses API stay at the provider."""

from typing import Any

import pytest
from fast_agent.llm.model_factory import ModelFactory
from fast_agent.llm.provider_types import Provider

from pallas_gateway.runtime import preparation

DATA = "JVBERi0="
INLINE = {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DATA}"}


@pytest.mark.parametrize(
    ("part", "sent", "changes"),
    [
        ({**INLINE, "file_data": DATA}, INLINE, True),
        (INLINE, INLINE, False),
        (
            {"type": "input_file", "file_data": DATA},
            {"type": "input_file", "file_data": f"data:application/octet-stream;base64,{DATA}"},
            True,
        ),
        ({**INLINE, "file_id": "file-1"}, {"type": "input_file", "file_id": "file-1"}, True),
        ({"type": "input_file", "file_url": "https://a/b"}, {"type": "input_file", "file_url": "https://a/b"}, False),
    ],
    ids=["base64", "a data URI", "without a name", "already uploaded", "a URL"],
)
async def test_a_files_data_stays_in_its_request(part: dict[str, Any], sent: dict[str, Any], changes: bool) -> None:
    preparation.prepare()
    responses: Any = ModelFactory._load_provider_class(Provider.RESPONSES)
    llm = responses.__new__(responses)  # an upload would need the client, which is None here
    assert await llm._normalize_input_file_part(None, part) == (sent, changes)
