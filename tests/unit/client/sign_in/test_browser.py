"""Where a sign-in opens a browser."""

from __future__ import annotations

import pytest

from pallas_gateway.client.sign_in.browser import opens_a_browser


@pytest.mark.parametrize(
    ("environ", "platform", "opens"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"BROWSER": "firefox"}, "linux", True),
        ({}, "darwin", True),
    ],
)
def test_a_browser_is_opened_where_there_are_windows(environ: dict[str, str], platform: str, opens: bool) -> None:
    assert opens_a_browser(environ, platform) is opens
