"""The entry points of `pallas-gateway` and the older `pallas`. They prepare the process, then load the commands.

To load those takes a second, in which a SIGHUP must not end a gateway that starts.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

from pallas_gateway import composition


def main(arguments: list[str] | None = None) -> None:
    """Run `pallas-gateway`; ends the process with the command's exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    _prepare(serves=given[:1] == ["serve"])
    from pallas_gateway.cli import commands  # noqa: PLC0415  see above

    commands.run(partial(commands.app, arguments))


def pallas_main() -> None:
    """Run the older `pallas`: `pallas-gateway serve --per-port`, `--agent NAME` likewise."""
    _prepare(serves=True)
    from pallas_gateway.cli import commands  # noqa: PLC0415  see above

    commands.run(partial(commands.older, ["--per-port", *sys.argv[1:]], prog_name="pallas"))


def _prepare(*, serves: bool) -> None:
    """Open the null device for closed standard streams, and have a process that serves survive a SIGHUP.

    Without that, the next files and sockets would get the descriptors of the streams, and with them what is printed.
    """
    composition.use_changes()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115  stays open; it gets the lowest free descriptor
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    if serves:
        signal.signal(signal.SIGHUP, lambda *_: None)  # the files are read later; `serve` has a handler of its own
