"""Images and PDFs that clients send from files."""

import os
from pathlib import Path

import pytest

from pallas_gateway.calls.conversation import checked_images
from pallas_gateway.client.arguments import image_of
from pallas_gateway.tasks import at_once


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        (b"report.pdf", "report.pdf"),
        (b"bad\xff.pdf", "bad?.pdf"),
        (b"two\nlines.pdf", "two lines.pdf"),
        (b"x" * 240 + b".pdf", "x" * 196 + ".pdf"),
    ],
)
def test_the_name_of_a_pdf_is_sent_as_the_gateway_takes_it(name: bytes, sent: str, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(name)
    path.write_bytes(b"%PDF-1.7")
    image = image_of(path)
    assert image["name"] == sent
    [taken] = at_once(checked_images([image]))
    assert taken.name == sent
