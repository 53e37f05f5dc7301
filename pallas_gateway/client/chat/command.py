"""`pallas-gateway chat`: a conversation at the terminal, or one turn of it. Every command imports this module."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from pallas_gateway.client.address import UrlOption, gateway_url
from pallas_gateway.client.arguments import AnswersOption, ApproveOption, NoAskOption, UsageError, message_text
from pallas_gateway.client.call_settings import SettingsOption
from pallas_gateway.client.gateway_client import BearerOption
from pallas_gateway.client.output import CANCELLED, problem


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Agent and thread of a chat.

    With `resume` the `thread` (None: the latest) must exist, otherwise it is created if missing; None is a new thread.
    With `keep_on_gateway` threads are kept by the gateway, else in files; `db` is a database of 0.1.0, or `:memory:`.
    `settings` and `answers` are `NAME=VALUE`. `message` is the only turn of a chat without a prompt.
    """

    agent: str
    url: str
    bearer: str | None = field(repr=False, default=None)
    db: str | None = field(kw_only=True, default=None)
    message: str | None = field(kw_only=True, default=None)
    thread: str | None = field(kw_only=True, default=None)
    resume: bool = field(kw_only=True, default=False)
    images: Sequence[Path] = field(kw_only=True, default=())
    settings: Sequence[str] = field(kw_only=True, default=())
    answers: Sequence[str] = field(kw_only=True, default=())
    approve: Sequence[str] = field(kw_only=True, default=())
    asks: bool = field(kw_only=True, default=True)
    keep_on_gateway: bool = field(kw_only=True, default=False)


def chat(
    agent: Annotated[str, typer.Argument(help="The agent to talk to.")],
    name: Annotated[str | None, typer.Argument(help="With --resume: the thread, by name or id.")] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Say this; - reads standard input.")] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", "--file", help="An image or a PDF for the first message; may be repeated."),
    ] = None,
    settings: SettingsOption = None,
    thread: Annotated[
        str | None, typer.Option(help="Talk in the thread of this name, made if it is not there.")
    ] = None,
    db: Annotated[
        str | None,
        typer.Option(envvar="PALLAS_CHAT_DB", help=":memory: keeps no threads; FILE is a database of 0.1.0 to import."),
    ] = None,
    bearer: BearerOption = None,
    url: UrlOption = None,
    answer: AnswersOption = None,
    approve: ApproveOption = None,
    *,
    no_ask: NoAskOption = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the latest thread, or with NAME.")] = False,
    keep_on_gateway: Annotated[
        bool, typer.Option("--keep-on-gateway", help="Keep the conversation in a thread of the gateway.")
    ] = False,
) -> None:
    """Talk to an agent of a running gateway; the conversation is kept on this machine, or by the gateway."""
    if name is not None and not resume:
        resumed = f"--resume {shlex.quote(name)}"
        raise UsageError(f"To say one thing: -m '{name}'. To go on with the thread of that name: {resumed}.")
    if resume and thread is not None:
        raise UsageError("--resume and --thread both name a thread; give one of them.")
    if message is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("A chat needs a terminal. To say one thing: -m TEXT, or -m - to read standard input.")
    if message is not None:
        message = message_text(message, has_images=bool(image))
    options = ChatOptions(
        agent,
        gateway_url(url),
        bearer,
        db=db,
        message=message,
        thread=name or thread,
        resume=resume,
        images=image or (),
        settings=settings or (),
        answers=answer or (),
        approve=approve or (),
        asks=not no_ask,
        keep_on_gateway=keep_on_gateway,
    )
    from pallas_gateway.client.chat.repl import run  # noqa: PLC0415  imports the terminal

    try:
        asyncio.run(run(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        problem(CANCELLED)
        raise typer.Exit(1) from None
