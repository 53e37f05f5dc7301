"""`pallas-gateway login` and `logout`: the options. `signing.py` has what they do; --help does not import it."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.arguments import UsageError
from pallas_gateway.client.output import CANCELLED, problem


def login(
    url: UrlOption = None,
    *,
    device: Annotated[bool, typer.Option("--device", help="Show a code to enter in a browser of any machine.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Show the page's URL, open no browser.")] = False,
) -> None:
    """Sign in at a gateway's authorization server; the client commands then use that token for that gateway."""
    if device and no_browser:
        raise UsageError("--device opens no browser anyway; give one of them.")
    from pallas_gateway.client.sign_in.signing import sign_in  # noqa: PLC0415  most commands do not need it

    try:
        asyncio.run(sign_in(gateway_url(url), by_code=device, no_browser=no_browser))
    except KeyboardInterrupt:
        problem(CANCELLED)
        raise typer.Exit(1) from None


def logout(
    url: UrlOption = None,
    *,
    everywhere: Annotated[bool, typer.Option("--all", help="Sign out at every gateway.")] = False,
) -> None:
    """Delete the sign-in at a gateway, and have the authorization server end it, where that is offered."""
    from pallas_gateway.client.sign_in.signing import sign_out  # noqa: PLC0415  as above

    asyncio.run(sign_out(None if everywhere else gateway_url(url)))
