"""`pallas-gateway chat`: a conversation at the terminal, or one turn of it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pallas_gateway.cli.address import UrlOption, gateway_url
from pallas_gateway.cli.chat.options import CANCELLED, Wanted
from pallas_gateway.cli.output import problem
from pallas_gateway.cli.parameters import SettingsOption
from pallas_gateway.cli.remote import BearerOption
from pallas_gateway.cli.usage import UsageError, refuse_empty

if TYPE_CHECKING:
    from pallas_gateway.cli.chat.conversation import Conversation

STORE_VARIABLE = "PALLAS_CHAT_DB"


def chat(
    agent: Annotated[str, typer.Argument(help="The agent to talk to.")],
    name: Annotated[str | None, typer.Argument(help="With --resume: the thread, by name or number.")] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Say this; - reads standard input.")] = None,
    image: Annotated[list[Path] | None, typer.Option(help="An image for the first message; may be repeated.")] = None,
    settings: SettingsOption = None,
    thread: Annotated[
        str | None, typer.Option(help="Talk in the thread of this name, made if it is not there.")
    ] = None,
    db: Annotated[
        str | None,
        typer.Option(envvar=STORE_VARIABLE, help="Where threads are kept; :memory: keeps none.", show_default=False),
    ] = None,
    bearer: BearerOption = None,
    url: UrlOption = None,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the latest thread, or with NAME.")] = False,
) -> None:
    """Talk to an agent of a running gateway; the conversation is kept on this machine."""
    if name is not None and not resume:
        raise UsageError(f"To say one thing: -m '{name}'. To go on with the thread of that name: --resume {name}.")
    if resume and thread is not None:
        raise UsageError("--resume and --thread both name a thread; give one of them.")
    if message is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("A chat needs a terminal. To say one thing: -m TEXT, or -m - to read standard input.")
    said = sys.stdin.read().removesuffix("\n") if message == "-" else message
    if said is not None:
        refuse_empty(said, images=bool(image))
    wanted = Wanted(
        agent,
        gateway_url(url),
        bearer,
        thread=name or thread,
        resume=resume,
        images=image or (),
        settings=settings or (),
    )
    try:
        is_fine = asyncio.run(_chat(wanted, db, said))
    except KeyboardInterrupt:  # while it was still connecting; a turn ends itself
        problem(CANCELLED)
        is_fine = False
    if not is_fine:
        raise typer.Exit(1)


async def _chat(wanted: Wanted, db: str | None, message: str | None) -> bool:
    """Whether all went well."""
    # Imported here: nobody else pays for the terminal and the database.
    from pallas_gateway.cli.chat.startup import begun  # noqa: PLC0415
    from pallas_gateway.cli.chat.store import IN_MEMORY, default_path, opened  # noqa: PLC0415

    path = db or str(default_path(os.environ, Path.home()))
    with opened(path) as store:
        talk = await begun(wanted, store)
        if message is not None:
            return await _say_once(talk, message)
        from pallas_gateway.cli.chat.repl import converse  # noqa: PLC0415

        await converse(talk, None if path == IN_MEMORY else Path(f"{path}-inputs"))
    return True


async def _say_once(talk: Conversation, message: str) -> bool:
    from pallas_gateway.cli.chat.repl import interruptible  # noqa: PLC0415

    try:
        with interruptible():
            await talk.say(message)
    except asyncio.CancelledError:
        problem(CANCELLED)
        return False
    return True
